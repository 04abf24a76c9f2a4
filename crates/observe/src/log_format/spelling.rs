//! Which known word was probably meant by an unknown one.

/// The known word that is most similar to `word`. `None`: none is similar enough.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let most = (word.len() / 3).max(1);
    known
        .map(|known| (distance(&word, known), known))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, word)| word)
}

/// How many letters must be inserted, removed or replaced, or neighbours exchanged (optimal string alignment distance).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i - 1] == *b && other[j - 1] == *a {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_misspelt_word_is_found_and_a_different_word_is_not() {
        let known = || ["combined", "common", "json"].into_iter();
        for (word, meant) in [
            ("jsn", Some("json")),
            ("JSON", Some("json")),
            ("josn", Some("json")),
            ("comon", Some("common")),
            ("combnied", Some("combined")),
            ("text", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known()), meant, "{word}");
        }
    }
}
