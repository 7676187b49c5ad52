#!/usr/bin/env bash
# Fetches the libraries of AArch64 that twinrun links (group build of packages.txt: what is named lib*) from this machine's own
# apt sources, unpacks them into a folder, and prints it, for cmake/aarch64.cmake. Nothing is installed: apt works with lists, a
# cache and a state of its own. The folder is kept outside the tree, so that every clone finds it, and is named by what it holds.
set -euo pipefail
shopt -s inherit_errexit nullglob

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted=$(awk '/^\[/ { on = ($1 == "[build]"); next } on && $1 ~ /^(lib|nlohmann|zlib)/ && $1 !~ /^libjs/ { print $1 }' "$here/packages.txt")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/twinrun
key=$({ cat "${BASH_SOURCE[0]}"; echo "$wanted"; } | sha256sum | cut -c 1-12)
where=$cache/aarch64-$key
mkdir -p "$cache"
exec 9>"$cache/sysroot.lock"
flock 9
if [[ -e $where/complete ]]; then
  echo "$where"
  exit
fi
log=$cache/aarch64-$key.log
: >"$log"
fail() {
  printf 'cmake/sysroot.sh: %s; the end of %s:\n' "$1" "$log" >&2
  tail -n 20 "$log" >&2
  exit 1
}
command -v apt-get dpkg-deb >/dev/null || fail "this is not a Debian system"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$where"

# The machine's sources without those that are for certain architectures only.
mkdir -p "$work"/{parts,lists/partial,cache/archives/partial}
: >"$work/status"
for file in /etc/apt/sources.list.d/*.sources; do
  grep -qi '^Architectures:' "$file" || cp "$file" "$work/parts/"
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [[ ! -f $file ]] || { grep -E '^deb[[:space:]]+[^[]' "$file" || true; } >"$work/parts/${file##*/}.list"
done
apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=false -o Dir::Etc::sourcelist=/dev/null \
    -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" \
    -o Dir::State::extended_states="$work/extended" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 "$@" >>"$log" 2>&1
}
printf 'cmake/sysroot.sh: fetching the libraries of AArch64 into %s\n' "$where" >&2
apt update || true  # a source may have nothing for arm64; whether Debian's has is seen next
# shellcheck disable=SC2086
apt -y --download-only install $wanted || fail "apt has no packages of arm64"

# The compiler's packages bring the C and C++ libraries and their headers; those of the sources would hide them.
mkdir -p "$where"
for package in "$work"/cache/archives/*.deb; do
  case ${package##*/} in
    libc6* | libc-dev* | linux-libc* | libstdc++* | libgcc* | gcc-* | lib*san[0-9]_* | libitm* | libatomic* | libcrypt[-1]* | pkg*) ;;
    *) dpkg-deb -x "$package" "$where" >>"$log" 2>&1 || fail "could not unpack ${package##*/}" ;;
  esac
done
# Links to absolute paths, of which zlib has one, lead into this machine's own folders.
find "$where" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -sfn "$where$(readlink "$link")" "$link"
done
touch "$where/complete"
echo "$where"
