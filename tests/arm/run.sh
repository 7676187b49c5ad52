#!/usr/bin/env bash
# The proof that AArch64 computes the same bits: builds by Debian's cross compiler (preset aarch64) and runs tests under qemu-user.
# What this shows and what not: docs/developers/processors.md.
#
#   tests/arm/run.sh            the library's light scenarios against the golden digests, and the tests of the kernels
#   tests/arm/run.sh COMMAND..  runs COMMAND under qemu instead: build/aarch64/twinrun doctor
#
# Exit 77: the cross compiler, qemu or the libraries of AArch64 are missing.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly BUILD=build/aarch64

skip() {
  printf 'arm: skipped: %s (./dev packages arm)\n' "$*" >&2
  exit 77
}
command -v aarch64-linux-gnu-g++ >/dev/null || skip "the cross compiler aarch64-linux-gnu-g++ is not installed"
command -v qemu-aarch64 >/dev/null || skip "qemu-aarch64 is not installed"
TWINRUN_SYSROOT=$(cmake/sysroot.sh) || skip "the libraries of AArch64 could not be fetched"
export TWINRUN_SYSROOT

emulated() {  # COMMAND..
  local libraries=$TWINRUN_SYSROOT/usr/lib/aarch64-linux-gnu:$TWINRUN_SYSROOT/lib/aarch64-linux-gnu
  qemu-aarch64 -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$libraries" "$@"
}

if (($#)); then
  emulated "$@"
  exit
fi

cmake --preset aarch64 >/dev/null
cmake --build $BUILD -j "${TWINRUN_JOBS:-2}" --target twinrun golden_runs backends_tests
printf '\n== the program ==\n'
emulated $BUILD/twinrun --version
failed=0
tests() {  # TITLE PROGRAM FILTER
  printf '\n== %s ==\n' "$1"
  emulated "$BUILD/tests/$2" --gtest_brief=1 --gtest_filter="$3" || failed=1
}
tests "golden digests, every light scenario, NEON" golden_runs 'GoldenRuns.LightScenarios'
tests "golden digests, three threads, unaligned, NEON" golden_runs 'Settings/GoldenIsaRuns.NeverChangeABit/neon_3_shifted'
tests "golden digests, five steps, scalar and the model of AMX" golden_runs 'GoldenRunsProof.*'
# Left out for the time that they take under qemu: AmxModel, Digest, and OpBits of dots and convolutions.
tests "flushing and kernels against the contract" backends_tests \
  'Flush.*:Elementwise.*:Reduce.*:AmxSelfTest.*:Kinds/OpBits.*-*/dot_general:*/convolution*'
exit $failed
