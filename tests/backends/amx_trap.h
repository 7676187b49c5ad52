// Runs AMX instructions on a processor without AMX: each one traps as illegal, is decoded and done
// in software. So tests run the machine code of gemm_amx.cc itself on every machine with AVX-512:
// encodings, tile numbers, strides, configuration. tile_dot_model does the arithmetic.
//
//   AmxTrap trap;  ...  trap.dots() == 12
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "backends/kernels/gemm_amx_model.h"

namespace twinrun {

class AmxTrap {
 public:
  AmxTrap() {
    dots_ = 0;
    struct sigaction action {};
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~AmxTrap() { sigaction(SIGILL, &before_, nullptr); }
  AmxTrap(const AmxTrap&) = delete;
  AmxTrap& operator=(const AmxTrap&) = delete;
  int64_t dots() const { return dots_; }
  // Whether this thread has configured tiles and not released them.
  static bool configured() { return state().configured; }

 private:
  struct State {
    bool configured = false;
    alignas(64) uint32_t tiles[8][256];
  };
  static State& state() {
    static thread_local State s;
    return s;
  }
  static inline std::atomic<int64_t> dots_;
  static inline struct sigaction before_ {};

  // The fields of a VEX instruction, C4 RXBmmmmm WvvvvLpp opcode ModRM, with the inverted bits of
  // the encoding inverted back.
  struct Code {
    unsigned prefix, opcode, mod, reg, rm, vvvv;
    const char* memory = nullptr;  // base + displacement
    int64_t index = 0;             // index * scale
    int64_t length = 5;
  };
  static bool decode(const uint8_t* p, const ucontext_t* context, Code& c) {
    if (p[0] != 0xC4 || (p[1] & 0x1F) != 2 || (p[2] & 0x84) != 0) return false;  // 0F38, W0, L0
    const unsigned r = ~p[1] >> 7 & 1u, x = ~p[1] >> 6 & 1u, b = ~p[1] >> 5 & 1u;
    c.vvvv = ~p[2] >> 3 & 15u;
    c.prefix = p[2] & 3u;
    c.opcode = p[3];
    c.mod = p[4] >> 6;
    c.reg = (p[4] >> 3 & 7u) | r << 3;
    c.rm = p[4] & 7u;
    if (c.mod == 3) {
      c.rm |= b << 3;
      return true;
    }
    const bool sib = c.rm == 4;
    unsigned base = c.rm;
    const uint8_t* at = p + 5;
    if (sib) {
      base = *at & 7u;
      const unsigned index = (*at >> 3 & 7u) | x << 3;
      if (index != 4) c.index = general(context, index) << (*at >> 6);
      ++at;
    }
    int64_t address = 0;
    const bool no_base = base == 5 && c.mod == 0;
    int32_t displacement = 0;
    if (c.mod == 1) {
      displacement = static_cast<int8_t>(*at);
      at += 1;
    } else if (c.mod == 2 || no_base) {
      std::memcpy(&displacement, at, 4);
      at += 4;
    }
    c.length = at - p;
    if (!no_base) {
      address = general(context, base | b << 3);
    } else if (!sib) {  // relative to the next instruction
      address = reinterpret_cast<int64_t>(at);
    }
    c.memory = reinterpret_cast<const char*>(address + displacement);
    return true;
  }
  static int64_t general(const ucontext_t* context, unsigned number) {
    constexpr int kNames[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                              REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                              REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[kNames[number]];
  }

  static bool configure(State& s, const char* memory) {
    uint8_t want[64] = {1};
    for (int t = 0; t < 8; ++t) want[16 + 2 * t] = 64, want[48 + t] = 16;
    s.configured = std::memcmp(want, memory, 64) == 0;
    std::memset(s.tiles, 0, sizeof s.tiles);
    return s.configured;
  }
  static bool execute(const Code& c) {
    State& s = state();
    const bool in_memory = c.mod != 3;
    if (c.opcode == 0x49 && c.prefix == 0 && in_memory && c.reg == 0)  // LDTILECFG
      return configure(s, c.memory);
    if (!s.configured || c.reg > 7) return false;
    if (c.opcode == 0x49 && c.prefix == 0 && !in_memory && c.reg == 0 && c.rm == 0) {
      s.configured = false;  // TILERELEASE
      return true;
    }
    if (c.opcode == 0x49 && c.prefix == 3 && !in_memory && c.rm == 0) {  // TILEZERO
      std::memset(s.tiles[c.reg], 0, 1024);
      return true;
    }
    if (c.opcode == 0x4B && c.prefix >= 2 && in_memory && c.rm == 4) {
      for (int r = 0; r < 16; ++r) {
        const char* row = c.memory + r * c.index;
        if (c.prefix == 3) {  // TILELOADD
          std::memcpy(s.tiles[c.reg] + r * 16, row, 64);
        } else {  // TILESTORED
          std::memcpy(const_cast<char*>(row), s.tiles[c.reg] + r * 16, 64);
        }
      }
      return true;
    }
    if (c.opcode == 0x5C && c.prefix == 2 && !in_memory && c.rm < 8 && c.vvvv < 8 &&
        c.reg != c.rm && c.reg != c.vvvv && c.rm != c.vvvv) {  // TDPBF16PS reg, rm, vvvv
      float sums[256];
      uint16_t rows[512], pairs[512];
      std::memcpy(sums, s.tiles[c.reg], sizeof sums);
      std::memcpy(rows, s.tiles[c.rm], sizeof rows);
      std::memcpy(pairs, s.tiles[c.vvvv], sizeof pairs);
      tile_dot_model(sums, rows, pairs);
      std::memcpy(s.tiles[c.reg], sums, sizeof sums);
      ++dots_;
      return true;
    }
    return false;
  }
  static void on_trap(int, siginfo_t*, void* context) {
    auto* const u = static_cast<ucontext_t*>(context);
    auto& next = u->uc_mcontext.gregs[REG_RIP];
    Code code;
    if (decode(reinterpret_cast<const uint8_t*>(next), u, code) && execute(code)) {
      next += code.length;
    } else {
      signal(SIGILL, SIG_DFL);  // not an AMX instruction: it traps again and ends the process
    }
  }
};

}  // namespace twinrun
