#!/usr/bin/env bash
# Builds HDF5 and libarchive as static libraries from Debian's sources, for the wheel (TWINRUN_STATIC), and prints the folder that
# they are installed in. Debian's own static libraries also need curl, OpenSSL and eight compressors; these need zlib alone. The
# folder is kept outside the tree, so that every clone finds it, and is named by this script and the compiler.
set -euo pipefail
shopt -s inherit_errexit nullglob

cache=${XDG_CACHE_HOME:-$HOME/.cache}/twinrun
key=$({ cat "${BASH_SOURCE[0]}"; ${CC:-cc} --version | head -n 1; } | sha256sum | cut -c 1-12)
where=$cache/static-$key
mkdir -p "$cache"
exec 9>"$cache/static.lock"
flock 9
if [[ -e $where/complete ]]; then
  echo "$where"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$cache/static-$key.log
: >"$log"
rm -rf "$where"

# Package sources of our own: those of the machine, but as deb-src, and with lists and a cache of their own, so that nothing of the
# machine's configuration is changed.
mkdir -p "$work"/{parts,lists/partial,cache/archives/partial,source}
for file in /etc/apt/sources.list.d/*.sources; do
  sed -E 's/^Types:.*/Types: deb-src/' "$file" >"$work/parts/${file##*/}"
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [[ ! -f $file ]] || sed -nE 's/^deb(-src)?[[:space:]]/deb-src /p' "$file" | sort -u >"$work/parts/${file##*/}.list"
done
apt() {
  apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::lists="$work/lists" \
    -o Dir::Cache="$work/cache" "$@" >>"$log" 2>&1
}
fail() {
  printf 'cmake/static.sh: %s; the end of %s:\n' "$1" "$log" >&2
  tail -n 20 "$log" >&2
  exit 1
}
printf 'cmake/static.sh: building HDF5 and libarchive into %s (two minutes)\n' "$where" >&2
apt update || true  # a source that is not Debian's may have no deb-src; whether Debian's has is seen next
(cd "$work/source" && apt source hdf5 libarchive) || fail "apt-get source hdf5 libarchive failed"

build() {  # NAME TARGET [CMAKE ARGS]: configures inside the build folder, because HDF5 writes files to the current one
  local name=$1 target=$2 source
  shift 2
  source=$(echo "$work/source/$name"-*/)
  mkdir "$work/$name"
  (cd "$work/$name" && cmake -G Ninja -S "$source" -B . -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_INSTALL_PREFIX="$where" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF "$@" && ninja "$target") >>"$log" 2>&1 ||
    fail "the build of $name failed"
}

# Thread-safe as Debian's. Without the read-only driver for S3 (curl, OpenSSL) and without szip.
build hdf5 install -DBUILD_TESTING=OFF -DHDF5_BUILD_TOOLS=OFF -DHDF5_BUILD_UTILS=OFF -DHDF5_BUILD_EXAMPLES=OFF \
  -DHDF5_BUILD_HL_LIB=OFF -DHDF5_BUILD_CPP_LIB=OFF -DHDF5_ENABLE_THREADSAFE=ON -DHDF5_ENABLE_Z_LIB_SUPPORT=ON \
  -DHDF5_ENABLE_SZIP_SUPPORT=OFF -DHDF5_ENABLE_ROS3_VFD=OFF

# Only zlib of the compressors, no cryptography and no XML: what zip files need. glibc's arc4random_buf would need glibc 2.36, so
# libarchive's own is compiled, under a name that glibc's header does not declare.
sed -i 's/\barc4random_buf\b/archive_arc4random_buf/' "$work"/source/libarchive-*/libarchive/archive_random.c
off=()
for part in TEST TAR CPIO CAT ACL XATTR OPENSSL NETTLE MBEDTLS LIBB2 LZ4 LZO LZMA ZSTD BZip2 LIBXML2 EXPAT PCREPOSIX LibGCC ICONV; do
  off+=("-DENABLE_$part=OFF")
done
build libarchive archive_static "${off[@]}" -DHAVE_ARC4RANDOM_BUF=OFF
install -m 644 "$work/libarchive/libarchive/libarchive.a" "$where/lib/"
install -m 644 "$work"/source/libarchive-*/libarchive/archive{,_entry}.h "$where/include/"

# The licences of both go into the wheel.
mkdir -p "$where/licenses"
for name in hdf5 libarchive; do
  install -m 644 "$(echo "$work/source/$name"-*/COPYING)" "$where/licenses/$name.txt"
done
touch "$where/complete"
echo "$where"
