"""Programs that die below Python: signals, aborts, uncaught C++ exceptions, the C library's own checks."""

from __future__ import annotations

from case import Case

BAD_ALLOC = """#include <cstdio>
#include <vector>
int main() {
  std::printf("building index over 12000000 vectors\\n"); std::fflush(stdout);
  std::vector<double> index(1ull << 42);
  return (int)index[0];
}
"""

RUNTIME_ERROR = """#include <cstdio>
#include <stdexcept>
int main() {
  std::printf("compiling engine\\n"); std::fflush(stdout);
  throw std::runtime_error("engine plan was built for another version (expected 19, got 17)");
}
"""

DOUBLE_FREE = """#include <stdlib.h>
#include <stdio.h>
int main(void) {
  puts("epoch 1 done"); fflush(stdout);
  void *p = malloc(40000); free(p); free(p);
  return 0;
}
"""

C_ASSERT = """#include <assert.h>
#include <stdio.h>
int main(int argc, char **argv) {
  puts("loading tokenizer"); fflush(stdout);
  int vocab = argc * 100;
  assert(vocab == 32000 && "vocabulary size does not match the model");
  return 0;
}
"""

FAULT = """import ctypes, faulthandler
faulthandler.enable()


def fused_step(i):
    ctypes.memset(16, 0, 64)


for i in range(3):
    print("step", i, flush=True)
fused_step(3)
"""

CASES = [
    Case("cpp-bad-alloc", "set -e\ng++ -O1 -o indexer indexer.cpp\n./indexer\n", {"indexer.cpp": BAD_ALLOC}, ("g++",)),
    Case(
        "cpp-uncaught", "set -e\ng++ -O1 -o engine engine.cpp\nexec ./engine\n", {"engine.cpp": RUNTIME_ERROR}, ("g++",)
    ),
    Case("glibc-double-free", "gcc -w -O0 -o trainer trainer.c\n./trainer\n", {"trainer.c": DOUBLE_FREE}, ("gcc",)),
    Case("c-assert", "gcc -o tok tok.c\n./tok\n", {"tok.c": C_ASSERT}, ("gcc",)),
    Case("segfault-faulthandler", "exec python train.py\n", {"train.py": FAULT}),
    Case(
        "segfault-bare",
        "python train.py\n",
        {"train.py": FAULT.replace("faulthandler.enable()\n", "\n").replace(", faulthandler", "")},
    ),
]
