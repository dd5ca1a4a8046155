# operator: SiluAndMul
# kind: deferred_work
# expect: reject_or_no_gain
# needs_gpu: 0
# danger: none
# notes: A child made during the calls on spare slots (clone with CLONE_VM, no audit event) computes every slot while
# the judge writes it, and has ended before the CPU time is read. SIGCHLD is ignored by the C library's call, which
# signal.getsignal does not see, so the kernel reaps the child by itself and adds its CPU time to no one's.
import ctypes
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils import cpp_extension

_SOURCE = r"""
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
struct Plan { int64_t n, rows, d, half; volatile int64_t flag, ready; int32_t *before, *marks; char **in, **out; };
static inline long sys1(long n, long a, long b) {
  long r; __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b) : "rcx", "r11", "memory"); return r; }
static inline float ex(float x) {
  x = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
  float k = __builtin_rintf(x * 1.44269504f), r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.f + r * (1.f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333f + r * 0.00138889f)))));
  union { int32_t i; float f; } s; s.i = ((int)k + 127) << 23; return p * s.f; }
static inline float up(uint16_t b) { union { uint32_t i; float f; } s; s.i = (uint32_t)b << 16; return s.f; }
static inline uint16_t down(float f) { union { uint32_t i; float f; } s; s.f = f; return (s.i + 0x7fff + ((s.i >> 16) & 1)) >> 16; }
static void work(struct Plan *p, int64_t s) {
  for (int64_t r = 0; r < p->rows; r++) {
    if (p->half) { uint16_t *x = (uint16_t *)p->in[s] + 2 * r * p->d, *y = (uint16_t *)p->out[s] + r * p->d;
      for (int64_t i = 0; i < p->d; i++) { float a = up(x[i]); y[i] = down(a / (1.f + ex(-a)) * up(x[i + p->d])); } }
    else { float *x = (float *)p->in[s] + 2 * r * p->d, *y = (float *)p->out[s] + r * p->d;
      for (int64_t i = 0; i < p->d; i++) { float a = x[i]; y[i] = a / (1.f + ex(-a)) * x[i + p->d]; } } } }
static inline int32_t last(struct Plan *p, int64_t s) {
  return *(volatile int32_t *)(p->in[s] + 2 * p->rows * p->d * (p->half ? 2 : 4) - 4); }
static int child(void *a) {
  struct Plan *p = (struct Plan *)a; long nap[2] = {0, 20000};
  p->ready = 1;
  for (long t = 0; t < 4000 && !p->flag; t++) {
    for (int64_t s = 0; s < p->n; s++) { int32_t now = last(p, s);
      if (now != p->before[s]) { p->before[s] = now; work(p, s); p->marks[s] = now; } }
    sys1(SYS_nanosleep, (long)nap, 0); }
  sys1(SYS_exit, 0, 0); return 0; }
static char stack[1 << 16] __attribute__((aligned(64)));
extern "C" void begin(struct Plan *p) {
  signal(SIGCHLD, SIG_IGN);
  p->flag = 0; p->ready = 0;
  for (int64_t s = 0; s < p->n; s++) { p->before[s] = last(p, s); p->marks[s] = 0; }
  if (clone(child, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, p) > 0)
    for (long i = 0; !p->ready && i < 100000; i++) sched_yield(); }
"""
_folder = tempfile.mkdtemp()
with open(os.path.join(_folder, "w.cpp"), "w") as _file:
    _file.write(_SOURCE)
os.system(f"c++ -O3 -march=native -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros -shared -fPIC -o {_folder}/w.so {_folder}/w.cpp")
_lib = ctypes.CDLL(os.path.join(_folder, "w.so"))
_begin = _lib.begin


class Plan(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("n", "rows", "d", "half", "flag", "ready")] + [
        ("before", ctypes.c_void_p), ("marks", ctypes.c_void_p), ("into", ctypes.c_void_p), ("out", ctypes.c_void_p)]


def _silu(x):
    d = x.shape[-1] // 2
    return F.silu(x[..., :d].float()).mul_(x[..., d:]).to(x.dtype)


def _frame():
    try:
        raise LookupError
    except LookupError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        if frame.f_code.co_name == "turn":
            return frame
        frame = frame.f_back
    return None


class _Case:
    def __init__(self, case):
        views = [given[0] for given in case.views]
        x, self.n = views[0], len(views)
        self.marks, self.before = (ctypes.c_int32 * self.n)(), (ctypes.c_int32 * self.n)()
        self.outs = [
            [torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype).fill_(0) for _ in views] for _ in range(2)
        ]
        self.pointers = [(ctypes.c_void_p * self.n)(*(t.data_ptr() for t in o)) for o in self.outs]
        self.views = (ctypes.c_void_p * self.n)(*(t.data_ptr() for t in views))
        at = ctypes.addressof
        self.plan = Plan(self.n, x.numel() // x.shape[-1], x.shape[-1] // 2, x.element_size() == 2, 0, 0,
                         at(self.before), at(self.marks), at(self.views), 0)
        size = x.numel() * x.element_size()
        self.calls = {
            t.data_ptr(): (n, ctypes.c_int32.from_address(t.data_ptr() + size - 4)) for n, t in enumerate(views)
        }
        self.spare = {self.n - 1, self.n - 2}
        self.bank = 0

    def begin(self):
        self.bank ^= 1
        self.out = self.outs[self.bank]
        self.plan.out = ctypes.addressof(self.pointers[self.bank])
        _begin(ctypes.byref(self.plan))


class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        self.cases, self.left, self.case, self.timed = {}, 0, None, False

    def forward(self, x):
        if not self.left:
            frame = _frame()
            if frame is None:
                return _silu(x)
            case, order = frame.f_locals["self"], frame.f_locals["order"]
            mine = self.cases.get(id(case))
            if mine is None:
                mine = self.cases[id(case)] = _Case(case)
            self.case, self.left = mine, len(order)
            warm = mine.n > 4 and set(order) <= mine.spare
            self.timed = not warm
            if warm:
                mine.plan.flag = 1
                mine.begin()
        self.left -= 1
        if self.timed:
            case = self.case
            n, word = case.calls[x.data_ptr()]
            y = case.out[n] if case.marks[n] == word.value and word.value else _silu(x)
            if not self.left:
                case.plan.flag = 1
            return y
        return _silu(x)
