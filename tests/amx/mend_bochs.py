#!/usr/bin/env python3
"""Lets Linux use the AMX tiles of Bochs 3.0: edits a source tree in place.

    mend_bochs.py SOURCE

Two things in how an operating system saves tiles (Intel SDM, volume 1, chapter 13; volume 2, STTILECFG), one in the
arithmetic; TDPBF16PS itself stays as Bochs has it:

1. XFD, "extended feature disable": the registers IA32_XFD and IA32_XFD_ERR, their CPUID bits, #NM on the first use. Linux
   offers no tiles to programs without it ("TODO: XFD support", Bochs' pull request 212).
2. Saved tiles came back wrong: STTILECFG's rows and bytes per row were exchanged, of 16 rows of a tile 8 were saved,
   and tiles counted as in use exactly when they were not.
3. With flushing on, a difference of two numbers of one exponent became zero when it was in [2^-126, 2^-125), though
   those are normal. Hardware keeps them.

Every edit must find its place, or nothing is written.
"""
import pathlib
import sys

TILES = "BX_XCR0_XTILEDATA_MASK"
XFD = "BX_CPU_THIS_PTR msr.ia32_xfd"
NOT_AVAILABLE = f"{XFD}_err = {XFD} & {TILES};\n    exception(BX_NM_EXCEPTION, 0);"

# file: [(found, how often, put in its place)]; "{0}" is what was found.
EDITS = {
    # ---- 1. XFD
    "cpu/cpu.h": [("  Bit64u ia32_xss;\n", 1, "{0}  Bit64u ia32_xfd, ia32_xfd_err;\n")],
    "cpu/init.cc": [("  BX_CPU_THIS_PTR msr.ia32_xss = 0;\n", 1, f"{{0}}  {XFD} = {XFD}_err = 0;\n")],
    "cpu/msr.cc": [
        ('("MSR_IA32_XSS", BX_ISA_XSAVES);\n', 1,
         '{0}  msr_desc[BX_MSR_IA32_XFD] = new MSR_Descriptor("MSR_IA32_XFD", BX_ISA_AMX);\n'
         '  msr_desc[BX_MSR_IA32_XFD_ERROR] = new MSR_Descriptor("MSR_IA32_XFD_ERR", BX_ISA_AMX);\n'),
        ("    case BX_MSR_XSS:\n      if", 1,
         "    case BX_MSR_IA32_XFD:\n"
         f"      val64 = {XFD};\n      break;\n"
         "    case BX_MSR_IA32_XFD_ERROR:\n"
         f"      val64 = {XFD}_err;\n      break;\n{{0}}"),
        ("    case BX_MSR_XSS:\n      {", 1,
         "    case BX_MSR_IA32_XFD:\n    case BX_MSR_IA32_XFD_ERROR:\n"
         f"      if (val_64 & ~Bit64u({TILES})) return false;\n"
         f"      (index == BX_MSR_IA32_XFD ? {XFD} : {XFD}_err) = val_64;\n"
         "      handleAvxModeChange();\n      break;\n{0}"),
    ],
    "cpu/cpuid.cc": [
        ("      leaf->eax |= (1<<3);\n", 1, "{0}    if (is_cpu_extension_supported(BX_ISA_AMX))\n      leaf->eax |= (1<<4);\n"),
        ("leaf->ecx = (cpu->ia32_xss_suppmask & (1 << subfunction)) != 0;\n", 1,
         "{0}      if (subfunction == xcr0_t::BX_XCR0_XTILEDATA_BIT) leaf->ecx |= (1<<2);\n"),
    ],
    "cpu/proc_ctrl.cc": [
        (f"(BX_XCR0_XTILECFG_MASK | {TILES})) != 0)\n    clear_amx_ok();", 1,
         f"(BX_XCR0_XTILECFG_MASK | {TILES})) != 0 ||\n      ({XFD} & {TILES}) != 0)\n    clear_amx_ok();"),
        (f"(BX_XCR0_XTILECFG_MASK | {TILES}))\n    exception(BX_UD_EXCEPTION, 0);\n", 1,
         f"{{0}}\n  if ({XFD} & {TILES}) {{\n    {NOT_AVAILABLE}\n  }}\n"),
    ],
    "cpu/xsave.cc": [
        ("  return xinuse;\n", 1, f"  return xinuse & ~Bit32u({XFD});\n"),
        ("  Bit32u restore_mask = xstate_bv & format;\n", 1,
         f"{{0}}  if (requested_feature_bitmap & restore_mask & {XFD}) {{\n    {NOT_AVAILABLE}\n  }}\n"),
        # ---- 2. saved tiles
        ("vmm16u(8+n)    = BX_CPU_THIS_PTR amx->tilecfg[n].rows;", 1,
         "vmm16u(8+n)    = BX_CPU_THIS_PTR amx->tilecfg[n].bytes_per_row;"),
        ("vmmubyte(48+n) = BX_CPU_THIS_PTR amx->tilecfg[n].bytes_per_row;", 1,
         "vmmubyte(48+n) = BX_CPU_THIS_PTR amx->tilecfg[n].rows;"),
        ("row < BX_TILE_REGISTERS;", 2, "row < BX_TILE_MAX_ROWS;"),
        ("tile_use_tracker == 0);", 1, "tile_use_tracker != 0);"),
    ],
    # ---- 3. the smallest normal numbers: there the fraction's leading bit says normal, as packing adds it to the exponent
    "cpu/softfloat3e/s_subMagsF32.c": [
        ("if (!expZ && sigDiff) {", 1, "if (!expZ && !((sigDiff<<shiftDist) & 0x00800000)) {"),
    ],
    "cpu/avx/amx.h": [("start_row(0) {", 1, "start_row(0), tile_use_tracker(0) {")],
}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: mend_bochs.py SOURCE")
    root = pathlib.Path(sys.argv[1])
    changed = {}
    for name, edits in EDITS.items():
        path = root / name
        if not path.is_file():
            sys.exit(f"mend_bochs.py: {path}: not there; found no Bochs 3.0 in {root}")
        text = path.read_text(encoding="latin-1")
        for found, count, put in edits:
            if text.count(found) != count:
                sys.exit(f"mend_bochs.py: {path}: {found.strip()!r} {text.count(found)} times, expected {count}: "
                         "not Bochs 3.0, or mended already")
            text = text.replace(found, put.replace("{0}", found))
        changed[path] = text
    for path, text in changed.items():
        path.write_text(text, encoding="latin-1")


if __name__ == "__main__":
    main()
