#!/bin/busybox sh
# shellcheck shell=dash
# Process 1 of the emulated machine: runs the lines of /plan, says what became of each, switches off.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp GTEST_COLOR=no
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
cd /tmp || exit

echo "== $(uname -r), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
dmesg | grep -iE 'xsave|xstate|amx|xfd'
echo "== tiles: $(grep -m1 -o 'amx_[a-z0-9]*' /proc/cpuinfo | tr '\n' ' ')"
failed=0
number=0
while IFS= read -r line; do
  case $line in '' | '#'*) continue ;; esac
  number=$((number + 1))
  echo "== $number: $line"
  sh -c "$line" </dev/null 2>&1
  code=$?
  echo "== $number: exit $code"
  [ "$code" = 0 ] || failed=$((failed + 1))
done </plan
if [ "$failed" = 0 ] && [ "$number" != 0 ]; then echo "== all succeeded"; else echo "== $failed of $number failed"; fi
sleep 2  # for the serial line
reboot -f
