#!/usr/bin/env bash
# AMX tiles on an emulated processor: builds Bochs 3.0, boots Debian's kernel in it and runs a plan of tests there, on
# twinrun's own release build. What this shows and what not: docs/developers/processors.md.
#
#   tests/amx/run.sh [PLAN]        PLAN: a file of shell lines, run in the guest one after the other (default plan.txt).
#                                  "same COMMAND": twinrun must print the state digest there that it prints here
#
# environment: TWINRUN_BOCHS_SOURCE=DIR  an unpacked Bochs 3.0 (default: Debian's source package, from apt)
#              TWINRUN_LINUX=FILE        a vmlinuz of 5.16 or later (default: Debian's cloud kernel, from apt)
#              TWINRUN_AMX_LIMIT=SECONDS for the whole plan (default 14400)
# Leaves build/amx/PLAN/log: seconds on this machine's clock, and what the guest printed. Exit 0: every line succeeded.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly HERE=tests/amx OUT=$PWD/build/amx BUILD=build/release
readonly BOCHS_VERSION=3.0 BOCHS_TARBALL=bochs_3.0+dfsg.orig.tar.xz
readonly BOCHS_SHA256=78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b

say() { printf 'amx: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

need() {  # FILE..: of the packages in cmake/packages.txt, group amx
  local file
  for file in "$@"; do [[ -e $file ]] || die "$file is not there: ./dev packages amx"; done
}

bochs_source() {  # leaves $OUT/source, mended
  local from=${TWINRUN_BOCHS_SOURCE:-}
  rm -rf "$OUT/source"
  if [[ -z $from ]]; then
    mkdir -p "$OUT/fetched"
    (cd "$OUT/fetched" && [[ -f $BOCHS_TARBALL ]] || apt-get source --download-only -qq "bochs=$BOCHS_VERSION+dfsg-1") ||
      die "apt has no source package bochs $BOCHS_VERSION: add deb-src of Debian 13 or later to its sources," \
        "or set TWINRUN_BOCHS_SOURCE to an unpacked Bochs $BOCHS_VERSION"
    echo "$BOCHS_SHA256  $OUT/fetched/$BOCHS_TARBALL" | sha256sum --check --quiet ||
      die "$OUT/fetched/$BOCHS_TARBALL is not the tarball this was made with"
    tar -xf "$OUT/fetched/$BOCHS_TARBALL" -C "$OUT/fetched"
    from=$OUT/fetched/bochs-$BOCHS_VERSION
  fi
  cp -r "$from" "$OUT/source"
  python3 $HERE/mend_bochs.py "$OUT/source"
}

build_bochs() {
  [[ -x $OUT/bochs && $OUT/bochs -nt $HERE/mend_bochs.py ]] && return
  say "building Bochs $BOCHS_VERSION (once, some minutes; log in build/amx/bochs.log)"
  bochs_source
  # Level 6 with AVX-512 and AMX is what the model sapphire_rapids asks for.
  (cd "$OUT/source" &&
    ./configure CFLAGS=-O2 CXXFLAGS=-O2 --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx \
      --enable-all-optimizations --with-nogui --disable-docbook &&
    make -j "${TWINRUN_JOBS:-2}") >"$OUT/bochs.log" 2>&1 || die "Bochs did not build: see build/amx/bochs.log"
  cp "$OUT/source/bochs" "$OUT/bochs"
}

fetch_linux() {
  [[ -z ${TWINRUN_LINUX:-} ]] || { cp "$TWINRUN_LINUX" "$OUT/vmlinuz"; return; }
  [[ -f $OUT/vmlinuz ]] && return
  local package
  package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
  [[ -n $package ]] || die "apt knows no linux-image-cloud-amd64: set TWINRUN_LINUX to a vmlinuz"
  say "fetching $package"
  rm -rf "$OUT/linux" && mkdir -p "$OUT/linux"
  (cd "$OUT/linux" && apt-get download -qq "$package" && dpkg-deb -x ./*.deb .)
  cp "$OUT"/linux/boot/vmlinuz-* "$OUT/vmlinuz"
}

# The guest's root, unpacked by the kernel: our programs under their names, what they load, and the tree's own tables
# where the programs were told to look for them.
make_root() {  # ROOT PLAN
  local root=$1 plan=$2 program library
  rm -rf "$root"
  mkdir -p "$root"/{bin,proc,sys,dev,tmp} "$root$PWD/tests/golden"
  cp /bin/busybox "$root/bin/"
  for program in "$BUILD/twinrun" "$BUILD"/tests/{backends,harness}_tests; do
    [[ -x $program ]] || die "$program is not built: ./dev build release all"
    strip -o "$root/bin/${program##*/}" "$program"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
      mkdir -p "$root$(dirname "$library")"
      cp -L "$library" "$root$library"
    done
  done
  cp -r tests/golden/runs "$root$PWD/tests/golden/"
  cp $HERE/guest_init.sh "$root/init"
  resolve_plan "$plan" >"$root/plan"
  chmod +x "$root/init"
}

# The plan with every "same COMMAND" replaced: by COMMAND and the digest that it has on this machine.
resolve_plan() {  # PLAN
  local line digest scratch
  scratch=$(mktemp -d)
  while IFS= read -r line; do
    if [[ $line == 'same '* ]]; then
      line=${line#same }
      digest=$(cd "$scratch" && PATH=$OLDPWD/$BUILD:$PATH sh -c "$line" | grep -o 'state digest [0-9a-f]*') ||
        die "no state digest here: $line"
      line="$line | grep '$digest'"
    fi
    printf '%s\n' "$line"
  done <"$1"
  rm -r "$scratch"
}

make_image() {  # DIR PLAN
  local dir=$1
  make_root "$dir/root" "$2"
  rm -rf "$dir/iso" && mkdir -p "$dir/iso"
  (cd "$dir/root" && find . | cpio --quiet -o -H newc | gzip -1 >"$dir/iso/initrd.gz")
  cp "$OUT/vmlinuz" /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$dir/iso/"
  # From clearcpuid on: what Bochs cannot do (docs/developers/processors.md, AMX), and an end that ends Bochs, too.
  cat >"$dir/iso/isolinux.cfg" <<'CFG'
default linux
label linux
  kernel /vmlinuz
  append initrd=/initrd.gz console=ttyS0 quiet nokaslr mitigations=off clearcpuid=fsrm no5lvl acpi=off reboot=triple
CFG
  xorriso -as mkisofs -quiet -o "$dir/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$dir/iso" 2>"$dir/xorriso.log" || die "xorriso: see $dir/xorriso.log"
  # ips: emulated instructions per emulated second; few, so that threads take turns often. The guest's own clock says nothing.
  cat >"$dir/bochsrc" <<CFG
cpu: model=sapphire_rapids, count=1, ips=50000000, reset_on_triple_fault=0
memory: guest=1024, host=1024
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
ata0-master: type=cdrom, path=$dir/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$dir/serial
display_library: nogui
log: $dir/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
CFG
}

main() {
  local plan=${1:-$HERE/plan.txt} dir start
  [[ -f $plan ]] || die "$plan: no such plan"
  need /bin/busybox /usr/share/bochs/BIOS-bochs-latest /usr/share/vgabios/vgabios.bin /usr/lib/ISOLINUX/isolinux.bin \
    /usr/lib/syslinux/modules/bios/ldlinux.c32 /usr/bin/xorriso /usr/bin/cpio
  dir=$OUT/$(basename "$plan" .txt)
  mkdir -p "$dir"
  build_bochs
  fetch_linux
  make_image "$dir" "$plan"
  rm -f "$dir/serial" && touch "$dir/serial"
  start=$SECONDS
  timeout "${TWINRUN_AMX_LIMIT:-14400}" "$OUT/bochs" -q -f "$dir/bochsrc" </dev/null >"$dir/bochs.out" 2>&1 &
  bochs=$!
  trap 'kill "$bochs" 2>/dev/null || true' EXIT
  tail --pid="$bochs" -s 0.5 -n +1 -f "$dir/serial" | while IFS= read -r line; do
    printf '%6d s  %s\n' $((SECONDS - start)) "${line%$'\r'}"
  done | tee "$dir/log"
  wait "$bochs" || true  # Bochs calls a guest that switches itself off an error
  grep -q '== all succeeded$' "$dir/log" || die "not everything succeeded: see ${dir#"$PWD/"}/log"
}

main "$@"
