#!/bin/sh
# Copies compiled dependencies between clones:
#     tools/compiled.sh get             # into target/, where nothing has been compiled yet
#     tools/compiled.sh keep ci loom    # these folders of target/, unless they have been kept
# The copies are in BUILD_CACHE, only for the current compiler and Cargo.lock. Nothing needs them: an error is a warning.
# The crates of the workspace are left out: cargo decides by file times whether they are up to date, and these say
# nothing about another clone.
set -u
cd "$(dirname "$0")/.." || exit 1
cache=$(realpath -m -- "${BUILD_CACHE:-${HOME:-/nonexistent}/.cache/tailrace}/compiled")
compiler=$(rustc -vV) || exit 0
kept=$cache/$(printf '%s\n' "$compiler" | cat - Cargo.lock | sha256sum | cut -c 1-16)

warn() {
    echo "compiled.sh: $1 in $cache; the next clone compiles it again" >&2
}

# Not through a pipe, which hides that its first command has failed.
copy_dependencies() {
    (cd "$1" && find . \( -path './deps/*.*' -o -path './build/*' -o -path './.fingerprint/*' \) \
        ! -type d ! -name '*tailrace*' ! -path './*/tailrace*' -print0) >"$temporary/files" \
        && (cd "$1" && xargs -0 -r cp -a --parents -t "$2") <"$temporary/files"
}

# Under another name first: whoever is killed in between leaves nothing that looks complete. Another clone may have
# begun to remove what is copied.
get() {
    rm -rf "target/.$1"
    mkdir -p target && cp -a "$kept/$1" "target/.$1" && [ -d "$kept/$1" ] && mv -T "target/.$1" "target/$1" \
        || rm -rf "target/.$1"
}

# Also under another name first.
remove() {
    gone=$(mktemp -d "$cache/.XXXXXX") && mv "$1" "$gone" && rm -rf "$gone"
}

keep() {
    mkdir -p "$kept" && temporary=$(mktemp -d "$kept/.XXXXXX") || return
    status=0
    for profile in "target/$1" "target/$1/ci"; do
        [ -d "$profile/.fingerprint" ] || continue
        folder=$temporary/${profile#target/}
        mkdir -p "$folder" && copy_dependencies "$profile" "$folder" || status=1
    done
    # Another clone may have been faster.
    [ $status != 0 ] || [ -e "$kept/$1" ] || mv -T "$temporary/$1" "$kept/$1" || status=1
    rm -rf "$temporary"
    return $status
}

case $1 in
    get)
        for folder in "$kept"/*; do
            name=$(basename "$folder")
            [ ! -d "$folder" ] || [ -e "target/$name" ] || get "$name" 2>/dev/null
        done
        ;;
    keep)
        shift
        for name in "$@"; do
            [ -e "$kept/$name" ] || keep "$name" 2>/dev/null || warn "cannot keep target/$name"
        done
        for folder in "$cache"/*; do
            [ "$folder" = "$kept" ] || [ ! -e "$folder" ] || remove "$folder" 2>/dev/null
        done
        rm -rf "$cache"/.??????
        find "$kept" -mindepth 1 -maxdepth 1 -name '.*' -mmin +60 -exec rm -rf {} + 2>/dev/null
        ;;
esac
exit 0
