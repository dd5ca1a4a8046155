"""What a confined role can't do, at the levels that promise it. Each attempt is really made, from inside."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from fk_core.child import landlock
from fk_core.sandbox import levels
from fk_core.sandbox.launch import launch
from fk_core.sandbox.zygote import Zygote
from fk_core.settings import Settings
from tests.sandbox.kit import Start, refused, run


def test_writes_only_to_its_scratch(start: Start, strong_level: str, settings: Settings, tmp_path: Path) -> None:
    child = start(strong_level)
    other = start(strong_level)
    places = [
        settings.home,
        settings.journal_dir,
        settings.cache_dir,
        other.scratch,
        tmp_path,
        Path("/usr"),
        Path("/etc"),
    ]
    places += [Path("/sys/fs/cgroup"), Path.cwd(), Path(landlock.__file__).parent]
    for place in places:
        target = place / "planted-by-candidate"
        child.ask({"code": f"open({str(target)!r}, 'w').write('x')"}, 10.0)
        assert not target.exists()
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"):
        assert "Error" in refused(child, f"open({path!r}, 'r+').write('x')")
    run(child, "open('inside', 'w').write('x'); import tempfile; tempfile.NamedTemporaryFile().write(b'x')")
    assert (child.scratch / "inside").read_text() == "x"


def test_cannot_change_or_delete_what_is_outside(start: Start, strong_level: str, settings: Settings) -> None:
    secret = settings.journal_dir / "secret"
    child = start(strong_level)
    for code in ("os.unlink(p)", "os.rename(p, 'mine')", "os.truncate(p, 0)", "os.link(p, 'mine')"):
        refused(child, f"import os; p = {str(secret)!r}; {code}")
    assert secret.read_text() == "the answer"


def test_cannot_read_the_harness_home(start: Start, strong_level: str, settings: Settings) -> None:
    child = start(strong_level)
    assert "Error" in refused(child, f"out = open({str(settings.journal_dir / 'secret')!r}).read()")
    refused(child, f"import os; os.symlink({str(settings.journal_dir)!r}, 'way'); out = open('way/secret').read()")


def test_hidden_paths_inside_readable_ones(start: Start, strong_level: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("tasks", "library/inner"):
        (tree / name).mkdir(parents=True)
    (tree / "tasks" / "oracle.py").write_text("hidden")
    (tree / "library" / "code.py").write_text("seen")
    (tree / "library" / "inner" / "key").write_text("hidden")
    for path in [tree, *tree.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    hide = (tree / "tasks", tree / "library" / "inner" / "key")
    child = start(strong_level, read_only=(tree,), hide=hide)
    assert run(child, f"out = open({str(tree / 'library' / 'code.py')!r}).read()") == "seen"
    for path in (tree / "tasks" / "oracle.py", tree / "library" / "inner" / "key"):
        got = child.ask({"code": f"out = open({str(path)!r}).read()"}, 10.0).body
        assert got.get("out", "") == "", got


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"])
def test_no_network_sockets(start: Start, strong_level: str, family: str) -> None:
    child = start(strong_level)
    assert "PermissionError" in refused(child, f"import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)")
    assert "PermissionError" in refused(child, f"import socket; socket.socket(socket.{family}, socket.SOCK_STREAM)")


def test_cannot_reach_a_local_server(start: Start, strong_level: str, tmp_path: Path) -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "Error" in refused(start(strong_level), code.format(port=server.getsockname()[1]))


def test_cannot_reach_unix_sockets_outside(start: Start, strong_level: str, settings: Settings) -> None:
    if strong_level != "namespaces" and landlock.version() < 6:
        pytest.skip("this kernel's landlock does not keep abstract sockets apart")
    child = start(strong_level)
    for address in (str(settings.home / f"s-{os.urandom(3).hex()}"), f"\0fk-test-{os.urandom(3).hex()}"):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
            server.listen()
            refused(child, f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})")
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept()


def test_cannot_signal_or_read_the_harness(start: Start, strong_level: str) -> None:
    child = start(strong_level)
    pid = os.getpid()
    if strong_level == "namespaces" or landlock.version() >= 6:
        for target in (pid, child.keeper):
            assert "Error" in refused(child, f"import os; os.kill({target}, 0)")
    for name in ("mem", "environ", "maps", "fd/0", "root/etc/passwd"):
        assert "Error" in refused(child, f"open('/proc/{pid}/{name}', 'rb').read(1)")


# Numbers of x86_64; what they name is in the id.
@pytest.mark.parametrize(
    ("number", "arguments"),
    [
        pytest.param(101, "16, {pid}, 0, 0", id="ptrace"),
        pytest.param(310, "{pid}, 0, 0, 0, 0, 0", id="process_vm_readv"),
        pytest.param(272, "0x10000000", id="unshare-user"),
        pytest.param(272, "0x00020000", id="unshare-mount"),
        pytest.param(308, "0, 0", id="setns"),
        pytest.param(165, "0, 0, 0, 0, 0", id="mount"),
        pytest.param(321, "0, 0, 0", id="bpf"),
        pytest.param(298, "0, 0, -1, -1, 0", id="perf_event_open"),
        pytest.param(425, "1, 0", id="io_uring_setup"),
        pytest.param(250, "0, 0, 0", id="keyctl"),
        pytest.param(323, "0", id="userfaultfd"),
        pytest.param(56, "0x10000011, 0, 0, 0, 0", id="clone-user"),
        pytest.param(0x40000000 + 39, "", id="x32"),
        pytest.param(141, "0, {pid}, 19", id="renice-another"),
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these are the numbers of x86_64")
def test_refused_calls(start: Start, strong_level: str, number: int, arguments: str) -> None:
    child = start(strong_level)
    call = f"c.syscall({', '.join(filter(None, [str(number), arguments.format(pid=os.getpid())]))})"
    code = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); r = {call}; out = [r, ctypes.get_errno()]"
    assert run(child, code) == [-1, 1]


def test_leaves_no_objects_of_the_system_behind(start: Start, strong_level: str) -> None:
    """They outlive every process: there is either a namespace that ends with the candidate, or no way to make them."""
    code = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
out = []
for make in (
    lambda: c.shmget(0, ctypes.c_size_t(4096), 0o1600),
    lambda: c.semget(0, 1, 0o1600),
    lambda: c.msgget(0, 0o1600),
    lambda: c.mq_open(b"/fk-left-behind", 0o102, 0o600, None),
):
    ctypes.set_errno(0)
    out.append([make() >= 0, ctypes.get_errno()])
"""
    before = _ipc_objects()
    child = start(strong_level)
    made = run(child, code)
    if strong_level == "landlock+seccomp":
        assert made == [[False, errno.EPERM]] * 4
    child.kill()
    assert _ipc_objects() - before == set()


def _ipc_objects() -> set[str]:
    """System V objects of this process's namespace, by kind and identifier."""
    return {
        f"{kind} {line.split()[1]}"
        for kind in ("shm", "sem", "msg")
        for line in Path(f"/proc/sysvipc/{kind}").read_text(encoding="ascii").splitlines()[1:]
    }


def test_has_no_privileges(start: Start, strong_level: str) -> None:
    lines = run(start(strong_level), "out = open('/proc/self/status').read()").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    if os.geteuid() == 0:
        assert int(status["CapBnd"], 16) == 0


def test_has_a_user_of_its_own_in_namespaces(start: Start, settings: Settings) -> None:
    if os.geteuid() != 0 or levels.explain(settings)["namespaces"]:
        pytest.skip("needs root and namespaces")
    first, second = start("namespaces"), start("namespaces")
    assert first.uid not in (None, 0, second.uid)
    assert second.uid not in (None, 0)
    assert run(first, "import os; out = os.getresuid()") == [first.uid] * 3
    assert run(first, "import os; out = [os.getpid(), os.getppid()]") == [2, 1]
    assert set(run(first, "import os; out = [p for p in os.listdir('/proc') if p.isdigit()]")) == {"1", "2"}


def test_holds_only_its_own_descriptors(start: Start, level: str) -> None:
    canary = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(canary, True)
    try:
        start(level)
        child = start(level)
        code = """
import os
names = [f'/proc/self/fd/{n}' for n in range(200)]
out = [os.readlink(name) for name in names if os.path.lexists(name)]
"""
        found = run(child, code)
    finally:
        os.close(canary)
    assert found[0] == "/dev/null"
    assert found[1] == found[2]
    assert found[1].startswith("pipe:")
    assert len([name for name in found[3:] if name.startswith("socket:")]) == 1
    # Landlock's permission to name threads lasts as long as this directory is held.
    assert all(name.startswith("socket:") or name.endswith("/task") for name in found[3:])
    assert len(found) <= 5


def test_environment_is_allow_listed(start: Start, level: str, zygote: Zygote) -> None:
    child = start(level)
    env = run(child, "import os; out = dict(os.environ)")
    first = run(child, "out = open('/proc/self/environ').read()") if level == "process" else ""
    assert "FK_TEST_TOKEN" not in env
    assert "LD_PRELOAD_TEST" not in env
    assert "not for children" not in first
    for name in (
        "HOME",
        "TMPDIR",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "XDG_CACHE_HOME",
    ):
        assert env[name].startswith(str(child.scratch)), name
    assert env["OMP_NUM_THREADS"] == "1"
    assert run(child, "import sys; out = sys.stdin.read()") == ""
    assert run(child, "import tempfile; out = tempfile.gettempdir()") == str(child.scratch / "tmp")


def test_threads_can_be_named(start: Start, level: str) -> None:
    """CUDA's start fails (error 304) where this does."""
    code = """
import os, threading
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
path = f'/proc/self/task/{thread.native_id}/comm'
open(path, 'w').write('named')
out = open(path).read()
done.set()
"""
    assert run(start(level), code) == "named\n"


def test_compilers_and_interpreters_work(start: Start, level: str) -> None:
    child = start(level)
    code = """
import subprocess, sys
open('a.cc', 'w').write('#include <cstdio>\\nint main() { std::puts("built"); }')
out = [subprocess.run(c, check=True, capture_output=True, text=True, timeout=60).stdout.strip() for c in
       (['g++', 'a.cc', '-o', 'a'], ['./a'], ['ninja', '--version'], [sys.executable, '-I', '-c', 'print(6 * 7)'])]
"""
    built = run(child, code, timeout_s=120.0)
    assert built[1] == "built"
    assert built[2]
    assert built[3] == "42"


def test_trusted_roles_cannot_be_read_by_others(start: Start) -> None:
    judge = start(None, role="judge")
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            Path(f"/proc/{judge.pid}/environ").read_bytes()
    assert os.stat(f"/proc/{judge.pid}/mem").st_uid == 0


def test_the_probe_sees_a_level_that_does_not_hold(zygote: Zygote, settings: Settings, tmp_path: Path) -> None:
    """Run the probe where nothing is confined, and it must say so."""
    secret = settings.journal_dir / "secret"
    outside = tmp_path / "outside"
    config = {
        "level": "namespaces",
        "outside": [str(outside)],
        "secret": str(secret),
        "harness": os.getpid(),
        "signals": True,
    }
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    child = launch(zygote, "probe", config, settings, level="process", scratch=scratch, cpu=True)
    try:
        broken = child.ask({"do": "probe"}, 60.0).body["broken"]
    finally:
        child.kill()
    if child.uid is None:  # unconfined, as the harness's own user
        assert outside.exists()
        assert any("files can be read" in line for line in broken)
        assert any("signalled" in line for line in broken)
    assert any("network" in line for line in broken)
