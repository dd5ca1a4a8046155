"""What the guards see, what they leave alone, and how long they take.

Each snippet is a tiny candidate. The ones that tamper are harmless where they run: a fork with a folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fk_core.records.claims import Findings

PROBE = Path(__file__).with_name("guards_probe.py")
CHECKOUT = Path(__file__).parents[3]

CAUGHT: dict[str, tuple[str, str]] = {
    # name: (kind, source)
    "event_patch": ("patched_function", "import torch\ntorch.cuda.Event.elapsed_time = lambda *a: 0.1"),
    "clock_patch": ("patched_function", "import time\ntime.perf_counter = lambda: 0.0"),
    "bench_patch": ("patched_function", "import triton.testing\ntriton.testing.do_bench = lambda *a, **k: 0.1"),
    "timer_patch": ("patched_function", "import torch.utils.benchmark as b\nb.Timer.timeit = lambda *a: 0"),
    "median_patch": ("patched_function", "import statistics\nstatistics.median = min"),
    "json_patch": ("patched_function", "import json\njson.dumps = lambda *a, **k: '{}'"),
    "print_patch": ("patched_function", "import builtins\nbuiltins.print = lambda *a, **k: None"),
    "code_swap": (
        "patched_function",
        "import torch\ndef f(*a, **k): return None\ntorch.testing.assert_close.__code__ = f.__code__",
    ),
    "defaults": ("patched_function", "import json\njson.dumps.__kwdefaults__ = {}"),
    "deleted": ("patched_function", "import torch\ndel torch.allclose"),
    "hidden_method": ("patched_function", "import torch\ntorch.Tensor.copy_ = lambda *a: a[0]"),
    "hidden_builtin": ("patched_function", "import torch.nn.functional as F\nF.len = lambda v: 1"),
    "own_class": (
        "patched_function",
        "import sys\nsys.modules['fk_core.child.audit'].Audit.note = lambda *a, **k: None",
    ),
    "sys_modules": ("patched_function", "import sys, types\nsys.modules['json'] = types.ModuleType('json')"),
    "torch_by_torch": ("patched_function", "import torch\ntorch.allclose = torch.is_tensor"),
    "partial": ("patched_function", "import torch, functools\ntorch.equal = functools.partial(torch.equal)"),
    "math_constant": ("patched_function", "import math\nmath.pi = 3.0"),
    "foreign_forward": ("patched_function", "import torch\ntorch.nn.Linear.forward = lambda self, x: x"),
    "dispatcher": (
        "patched_function",
        "import torch\nL = torch.library.Library('aten', 'IMPL')\nL.impl('silu', lambda x: x, 'CPU')",
    ),
    "profile": ("trace_hook", "import sys\nsys.setprofile(lambda *a: None)"),
    "trace_new_threads": ("trace_hook", "import threading\nthreading.setprofile(lambda *a: None)"),
    "audit_hook": ("trace_hook", "import sys\nsys.addaudithook(lambda *a: None)"),
    "function_mode": (
        "global_state",
        "from torch.overrides import TorchFunctionMode as M\nclass Q(M):\n"
        "    def __torch_function__(self, f, t, a=(), k=None): return f(*a, **(k or {}))\nm = Q()\nm.__enter__()",
    ),
    "default_dtype": ("global_state", "import torch\ntorch.set_default_dtype(torch.float64)"),
    "tf32": ("global_state", "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True"),
    "matmul_precision": ("global_state", "import torch\ntorch.set_float32_matmul_precision('medium')"),
    "threads_of_torch": ("global_state", "import torch\ntorch.set_num_threads(2)"),
    "denormals": ("global_state", "import torch\ntorch.set_flush_denormal(True)"),
    "deterministic": ("global_state", "import torch\ntorch.use_deterministic_algorithms(True, warn_only=True)"),
    "signal_handler": ("global_state", "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: None)"),
    "module_hook": (
        "global_hook",
        "import torch.nn.modules.module as m\nm.register_module_forward_hook(lambda *a: None)",
    ),
    "import_hook": ("global_hook", "import sys\nclass F:\n    find_spec = None\nsys.meta_path.append(F())"),
    "thread_at_rest": (
        "thread",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
    ),
    "thread_in_call": (
        "thread",
        "import threading\ndef run():\n    t = threading.Thread(target=int)\n    t.start()\n    t.join()",
    ),
    "raw_thread": ("thread", "import _thread\n_thread.start_new_thread(int, ())"),
    "fork": ("process", "import os\np = os.fork()\nif p == 0: os._exit(0)\nos.waitpid(p, 0)"),
    "program_in_call": ("process", "import subprocess\ndef run():\n    subprocess.run(['true'], check=False)"),
    "child_at_rest": ("process", "import subprocess\nP = subprocess.Popen(['sleep', '30'])"),
    "native_fork": (
        "process",
        "import ctypes, os, time\nif ctypes.CDLL(None).fork() == 0:\n    time.sleep(30)\n    os._exit(0)",
    ),
    "exec": ("process", "import os\ndef run():\n    os.execv('/bin/true', ['true'])"),
    "kill_parent": ("harness_kill", "import os\nos.kill(os.getppid(), 15)"),
    "network": ("network", "import socket\nsocket.getaddrinfo('127.0.0.1', 9)"),
    "connect": (
        "network",
        "import socket\ndef run():\n    s = socket.socket()\n    s.settimeout(1)\n    s.connect(('127.0.0.1', 9))",
    ),
    "socket": ("network", "import socket\ndef run():\n    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()"),
    "write_outside": ("filesystem", "open('/var/tmp/fk_never_written', 'w')"),
    "write_os_open": ("filesystem", "import os\nos.open('/var/tmp/fk_never_written', os.O_CREAT | os.O_WRONLY)"),
    "mkdir_outside": ("filesystem", "import os\nos.mkdir('/var/tmp/fk_never_made')"),
    "shm": ("filesystem", "open('/dev/shm/fk_never_written', 'w')"),
    "rename_outside": ("filesystem", "import os\nopen('a', 'w').close()\nos.rename('a', '/var/tmp/fk_never_written')"),
    "read_forbidden": ("oracle_leak", "import os\nopen(os.environ['FORBIDDEN'] + '/secret.txt').read()"),
    "list_forbidden": ("oracle_leak", "import os\nos.listdir(os.environ['FORBIDDEN'])"),
    "link_to_forbidden": (
        "oracle_leak",
        "import os\nos.symlink(os.environ['FORBIDDEN'], 'x')\nopen('x/secret.txt').read()",
    ),
    "library_reads_forbidden": (
        "oracle_leak",
        "import os, torch\ntorch.load(os.environ['FORBIDDEN'] + '/secret.txt')",
    ),
    "parent_memory": ("oracle_leak", "import os\nopen(f'/proc/{os.getppid()}/maps').read()"),
    "harness_import": ("oracle_leak", "import fk_core.child.wire_tap_that_is_not_there"),
    "forged_name": ("forged_frame", "import json\ncompile('x = 1', json.__file__, 'exec')"),
    "forged_replace": ("forged_frame", "import json\ndef f(): pass\nf.__code__.replace(co_filename=json.__file__)"),
    "ld_preload": ("persistence", "import os\nos.environ['LD_PRELOAD'] = '/tmp/x.so'"),
}

LEFT_ALONE: dict[str, str] = {
    "plain": "import torch, triton\nclass RMSNorm(torch.nn.Module):\n    def forward(self, x): return x",
    "namedtuple": "import collections, typing\nP = collections.namedtuple('P', 'a b')\n"
    "class Q(typing.NamedTuple):\n    a: int = 1",
    "dataclass": "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: int = 1",
    "pool_closed": "from concurrent.futures import ThreadPoolExecutor as P\n"
    "with P(2) as p: assert list(p.map(abs, [-1])) == [1]",
    "tempfile": "import os, tempfile, shutil\nwith tempfile.TemporaryDirectory() as d:\n"
    "    open(d + '/x', 'w').close(); os.rename(d + '/x', d + '/y'); os.makedirs(d + '/a/b')\n"
    "shutil.rmtree(tempfile.mkdtemp())",
    "flag_restored": "import torch\ndef run():\n    b = torch.get_float32_matmul_precision()\n"
    "    torch.set_float32_matmul_precision('medium')\n    torch.set_float32_matmul_precision(b)",
    "mode_left": "import torch\ndef run():\n    with torch.inference_mode(), torch.device('cpu'): torch.ones(3)",
    "own_library": "import torch\n@torch.library.custom_op('mine::f', mutates_args=())\n"
    "def f(x: torch.Tensor) -> torch.Tensor: return x + 1\ndef run(): f(torch.ones(3))",
    "own_function_swap": "def f(): return 1\ndef g(): return 2\nf.__code__ = g.__code__",
    "wrapped": "import functools\n@functools.wraps(print)\ndef f(*a): pass\nf = functools.lru_cache(f)",
    "warnings": "import warnings\nwarnings.filterwarnings('ignore')",
    "logging": "import logging\nlogging.basicConfig(level=logging.INFO)\nlogging.getLogger('k').info('hello')",
    "generated": "exec(compile('def f(): return 1', '<generated>', 'exec'))",
    "signal_self": "import os\nos.kill(os.getpid(), 0)",
    "compiler_variables": "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0a'\nos.environ['MAX_JOBS'] = '2'",
    "cudnn_benchmark": "import torch\ntorch.backends.cudnn.benchmark = True",
    "inductor_config": "import torch._inductor.config as c\nc.max_autotune = True",
    "monkeypatch_own": "import torch\nclass M(torch.nn.Module):\n    def forward(self, x): return x\n"
    "M.forward = lambda self, x: x",
    "profiler": "import torch\ndef run():\n    with torch.profiler.profile(activities=["
    "torch.profiler.ProfilerActivity.CPU]): torch.ones(3).sum()",
    "socketpair": "import socket\ndef run():\n    for s in socket.socketpair(): s.close()",
    "dev_null": "open('/dev/null', 'w').close()",
}

WARNED: dict[str, tuple[str, str]] = {
    "frame": ("introspection", "import sys\nsys._getframe()"),
    "gc": ("introspection", "import gc\ngc.get_objects()"),
    "ctypes": ("ctypes", "import ctypes\nctypes.CDLL('libc.so.6')"),
    "program_at_import": ("process", "import subprocess\nsubprocess.run(['true'], check=False)"),
    "grad": ("global_state", "import torch\ntorch.set_grad_enabled(False)"),
    "variable": ("environment", "import os\nos.environ['SOMETHING'] = '1'"),
}


_LIBRARY = """
import socket, torch

def set_stream(stream):
    pass

def prepare():
    socket.socket(socket.AF_INET).close()
    torch.cuda.set_stream = set_stream
"""
"""What a production library does while it starts: looks at the network, replaces a function of torch."""


_VARIABLES = "import os\nos.environ.update({f'MY_{i}': '1' for i in range(250)})"
MANY = {
    "variables": _VARIABLES,
    "paths": "import sys\nsys.path += [f'/opt/x{i}' for i in range(250)]",
    "variables_and_a_patch": _VARIABLES
    + "\nimport torch\ntorch.allclose = None\nos.environ['LD_PRELOAD'] = '/tmp/x.so'",
}
"""More findings than an answer holds."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    forbidden = tmp_path_factory.mktemp("harness_home")
    (forbidden / "secret.txt").write_text("the answer", encoding="utf-8")
    # Not called site-packages: a folder that only PYTHONPATH names holds libraries, too.
    packages = tmp_path_factory.mktemp("libraries")
    for name in ("flash_attn", "allowed_kernels", "other_kernels"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text(_LIBRARY, encoding="utf-8")
    snippets = {name: source for name, (_, source) in {**CAUGHT, **WARNED}.items()} | LEFT_ALONE
    snippets |= MANY
    snippets["policy"] = "import flash_attn"
    snippets["policy_read"] = f"open({str(packages)!r} + '/flash_attn/__init__.py').read()"
    snippets["policy_allowed"] = "import allowed_kernels\nallowed_kernels.prepare()"
    snippets["patched_by_another"] = "import other_kernels\nother_kernels.prepare()"
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(packages)]),
        "FORBIDDEN": str(forbidden),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        input=json.dumps(snippets),
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _of(answer: dict[str, Any], severity: str) -> list[str]:
    return [entry["kind"] for entry in answer["findings"] if entry["severity"] == severity]


@pytest.mark.parametrize("name", CAUGHT)
def test_tampering_is_rejected_and_named(seen: dict[str, dict[str, Any]], name: str) -> None:
    found = [entry for entry in seen[name]["findings"] if entry["severity"] == "reject"]
    assert CAUGHT[name][0] in [entry["kind"] for entry in found], seen[name]
    assert all(entry["what"] and entry["instead"] and entry["where"] for entry in found), found


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_honest_code_is_left_alone(seen: dict[str, dict[str, Any]], name: str) -> None:
    assert seen[name]["raised"] == []
    assert seen[name]["findings"] == []


@pytest.mark.parametrize("name", WARNED)
def test_odd_code_is_a_warning_only(seen: dict[str, dict[str, Any]], name: str) -> None:
    assert WARNED[name][0] in _of(seen[name], "warn"), seen[name]
    assert _of(seen[name], "reject") == []


@pytest.mark.parametrize("name", MANY)
def test_more_findings_than_an_answer_holds(seen: dict[str, dict[str, Any]], name: str) -> None:
    found = seen[name]["findings"]
    Findings.model_validate({"findings": found})
    kinds = [entry["kind"] for entry in found]
    assert len(found) == 200
    if name == "variables_and_a_patch":
        assert kinds[:3] == ["patched_function", "persistence", "findings"]
        assert _of(seen[name], "reject") == kinds[:2]
    else:
        assert kinds == ["findings"] + ["environment"] * 199
        assert found[0]["what"] == "250 things were seen; 51 of them are left out"
        assert _of(seen[name], "warn") == kinds


@pytest.mark.parametrize(
    "name", ["kill_parent", "write_outside", "write_os_open", "mkdir_outside", "read_forbidden", "exec"]
)
def test_some_things_are_refused_outright(seen: dict[str, dict[str, Any]], name: str) -> None:
    assert any("PermissionError" in text for text in seen[name]["raised"]), seen[name]
    assert not os.path.exists("/var/tmp/fk_never_written")
    assert not os.path.exists("/var/tmp/fk_never_made")


def test_production_libraries_are_a_matter_of_policy(seen: dict[str, dict[str, Any]]) -> None:
    assert "baseline_call" in _of(seen["policy"], "policy")
    assert "flash_attn" in seen["policy"]["findings"][0]["what"]
    assert _of(seen["policy_read"], "policy") == ["baseline_call"]
    assert seen["policy_allowed"]["findings"] == []
    assert "patched_function" in _of(seen["patched_by_another"], "reject")


def test_the_cost_is_printed(seen: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    arm = sorted(answer["arm_ms"] for answer in seen.values())
    check = sorted(answer["checkpoint_ms"] for answer in seen.values())
    with capsys.disabled():
        print(f"\nguards: arm {arm[len(arm) // 2]:.0f} ms, checkpoint {check[len(check) // 2]:.0f} ms")  # noqa: T201
    assert arm
    assert check
