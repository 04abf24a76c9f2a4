// A table: its head sorts it, and for each item it has a <tbody> with a row, and a row of details while that is open.
// Where there is no room for columns the rows are cards, and a list beside the heading sorts them.

// How two values are ordered. Values that are not known come last, in both directions.
function ordered(one, other, falls) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "string" ? one.localeCompare(other) : one - other;
  return falls ? -order : order;
}

// columns: [{ explain, name, kind, opens, draw(cell, item), value(item), rises, isEmpty(item) }]. The one that opens has
// the button. One with a value can be sorted by, the largest first unless it rises. One in which every item is empty is
// hidden. by: the name of the column that sorts first. open(item): the details. first: rows that are shown before a click
// on "Show all".
class Table {
  constructor(table, columns, { key, by, open, first = 10 }) {
    this.table = table;
    this.columns = columns;
    this.key = key;
    this.open = open;
    this.first = first;
    this.details = new Map();
    this.items = [];
    this.isWhole = false;
    this.heads = columns.map((column) => {
      const name = column.value
        ? element("button", { type: "button", className: "sort", "data-explain": column.explain }, column.name)
        : term(column.explain, column.name);
      if (column.value) name.addEventListener("click", () => this.sort(column, column === this.by ? !this.falls : undefined));
      return element("th", { scope: "col", className: column.kind ?? "" }, name);
    });
    table.append(element("thead", {}, element("tr", {}, ...this.heads)));
    this.more = element("button", { type: "button", className: "more", hidden: true });
    this.more.addEventListener("click", () => {
      this.isWhole = !this.isWhole;
      this.show();
    });
    table.after(this.more);
    table.closest("section").querySelector(".heading").append(this.sorter());
    this.sort(columns.find(({ name }) => name === by));
    table.addEventListener("click", (event) => this.click(event));
    table.addEventListener("keydown", (event) => {
      const body = event.target.closest("tbody");
      if (event.key !== "Escape" || !body || !this.details.has(body.item.key)) return;
      this.toggle(body);
      body.querySelector("button").focus();
    });
  }

  // What sorts cards: a list of the columns, and a button for the direction.
  sorter() {
    const sortable = this.columns.filter((column) => column.value);
    const options = sortable.map((column) => element("option", { value: column.name }, column.name));
    this.list = element("select", { "data-explain": "sort" }, ...options);
    this.list.addEventListener("change", () => this.sort(sortable.find(({ name }) => name === this.list.value)));
    this.turn = element("button", { type: "button", "data-explain": "reverse", ariaLabel: "Reverse the order" });
    this.turn.addEventListener("click", () => this.sort(this.by, !this.falls));
    return element("div", { className: "sorter" }, element("label", {}, element("span", {}, "Sort by "), this.list), this.turn);
  }

  // falls: the largest first. Without it, as the column says.
  sort(column, falls) {
    this.by = column;
    this.falls = falls ?? !column.rises;
    this.columns.forEach((each, place) => {
      if (each === column) this.heads[place].ariaSort = this.falls ? "descending" : "ascending";
      else this.heads[place].ariaSort = null;
    });
    this.list.value = column.name;
    say(this.turn, this.falls ? "▼" : "▲");
    this.show();
  }

  draw(items) {
    this.items = items;
    this.show();
  }

  show() {
    const sorted = this.items
      .map((item) => [this.by.value(item), item])
      .sort(([one], [other]) => ordered(one, other, this.falls))
      .map(([, item]) => item);
    // What somebody reads stays.
    const shown = sorted.filter((item, place) => this.isWhole || place < this.first || this.details.has(this.key(item)));
    const focused = this.table.contains(document.activeElement) ? document.activeElement : null;
    keep(
      this.table,
      shown,
      this.key,
      (item) => this.make(item),
      (body, item) => this.update(body, item),
    );
    // A row that is moved loses the focus.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
    this.columns.forEach((column, place) => {
      const isEmpty = Boolean(column.isEmpty) && this.items.every((item) => column.isEmpty(item));
      for (const row of [this.heads[place].parentNode, ...Array.from(this.table.tBodies, (body) => body.rows[0])]) {
        row.cells[place].hidden = isEmpty;
      }
    });
    this.table.tHead.hidden = !this.items.length;
    this.more.hidden = sorted.length <= this.first;
    say(this.more, this.isWhole ? `Show ${this.first} only` : `Show all ${count(sorted.length)}`);
  }

  make(item) {
    const cells = this.columns.map((column) => element("td", { className: column.kind ?? "", "data-name": column.name, "data-explain": column.explain }));
    const button = element("button", { type: "button", className: "open", "aria-expanded": "false" });
    const place = this.columns.findIndex((column) => column.opens);
    cells[place].append(button);
    const body = element("tbody", {}, element("tr", { className: "row" }, ...cells));
    body.item = { key: this.key(item), item };
    // The filter had removed it.
    const details = this.details.get(body.item.key);
    if (details) this.attach(body, details);
    return body;
  }

  update(body, item) {
    body.item.item = item;
    const { cells } = body.rows[0];
    this.columns.forEach((column, place) => column.draw(column.opens ? cells[place].firstChild : cells[place], item));
    body.classList.toggle("ended", item.ended === true);
    this.details.get(body.item.key)?.update(item);
  }

  click(event) {
    const row = event.target.closest("tr.row");
    if (row && !String(getSelection())) this.toggle(row.parentNode);
  }

  toggle(body) {
    const { key, item } = body.item;
    const button = body.querySelector("button");
    if (this.details.delete(key)) {
      body.rows[1].remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const details = this.open(item);
    this.details.set(key, details);
    this.attach(body, details);
    details.update(item);
  }

  attach(body, details) {
    const cell = element("td", { colSpan: this.columns.length }, details.node);
    body.append(element("tr", { className: "details" }, cell));
    body.querySelector("button").setAttribute("aria-expanded", "true");
  }

  // Closes the details of items that are no longer there.
  forget(keys) {
    for (const key of this.details.keys()) if (!keys.has(key)) this.details.delete(key);
  }
}
