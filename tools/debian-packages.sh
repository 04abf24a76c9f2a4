#!/bin/sh
# Installs Debian packages whose commands or files are missing, and says first which, why and how:
#     tools/debian-packages.sh 'the tests' ab=apache2-utils /usr/include/ev.h=libev-dev
# Needs root or sudo without a password; otherwise, and with NO_APT=1, it only prints the line to run. What stays
# missing is a failure on CI (CI=true) and a warning elsewhere.
set -eu

reason=$1
shift

# nginx and its like live in sbin, which is not on everyone's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

missing_packages() {
    for pair in "$@"; do
        case $pair in
            /*) test -e "${pair%%=*}" ;;
            *) command -v "${pair%%=*}" >/dev/null 2>&1 ;;
        esac || printf '%s ' "${pair#*=}"
    done
}

packages=$(missing_packages "$@")
[ -n "$packages" ] || exit 0

if [ -n "${NO_APT:-}" ]; then
    as_root=none
elif [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root=sudo
else
    as_root=none
fi

if [ "$as_root" != none ] && command -v apt-get >/dev/null 2>&1; then
    echo "$reason: Debian packages are missing, and are installed into this system now (NO_APT=1 leaves it alone):" >&2
    echo "    ${as_root:+$as_root }apt-get install --no-install-recommends $packages" >&2
    # A failure shows below as something that is still missing. No service is started: these are tools to run by hand.
    # shellcheck disable=SC2086 # a list of names
    { $as_root apt-get -qq update && $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -qq install -y --no-install-recommends $packages; } >&2 || true
    packages=$(missing_packages "$@")
fi

if [ -n "$packages" ]; then
    echo "$reason: missing Debian packages; to install them: sudo apt-get install $packages" >&2
    [ "${CI:-}" != true ] || exit 1
fi
