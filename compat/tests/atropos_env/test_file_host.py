"""How files are loaded, made and called."""

import asyncio
import contextvars
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError, ModelError

pytest.importorskip("pydantic")

from ludus.compat.atropos_env.base_env import SERVICES, BaseEnv, FileServices
from ludus.compat.atropos_env.env_config import APIServerConfig, BaseEnvConfig
from ludus.compat.atropos_env.file_host import FileHost, describe_trace, load_file
from ludus.compat.atropos_env.file_modules import list_atropos_modules
from ludus.compat.atropos_env.server_view import FileServers


def load(path: Path, text: str, name: str = ""):
    path.write_text(text)
    return load_file(path, name, list_atropos_modules(), (BaseEnv,))


def make_services() -> FileServices:
    return FileServices(FileServers([]), asyncio.get_running_loop(), Path("out"), drop, drop)


def drop(_: Any) -> None: ...


TWO = """
from atroposlib.envs.base import BaseEnv
class Parent(BaseEnv): pass
class A(Parent): pass
class B(Parent): pass
"""


def test_the_class_of_a_file_is_the_only_leaf_or_the_named_one(tmp_path: Path):
    loaded = load(tmp_path / "one.py", TWO.replace("class B(Parent): pass\n", ""))
    assert loaded.kind.__name__ == "A"
    loaded.close()
    named = load(tmp_path / "two.py", TWO, "B")
    assert named.kind.__name__ == "B"
    named.close()
    for name, words in (("", "two.py:A, two.py:B"), ("C", "no class 'C'")):
        with pytest.raises(ConfigError, match=words):
            load(tmp_path / "two.py", TWO, name)
    with pytest.raises(ConfigError, match="no class derived from BaseEnv"):
        load(tmp_path / "none.py", "from atroposlib.envs.base import BaseEnv\n")
    with pytest.raises(ConfigError, match="there is no file"):
        load_file(tmp_path / "absent.py", "", {}, (BaseEnv,))


def test_the_modules_of_a_file_exist_until_it_is_closed(tmp_path: Path):
    loaded = load(tmp_path / "one.py", "from atroposlib.envs.base import BaseEnv\nclass A(BaseEnv): pass\n")
    assert sys.modules["atroposlib.envs.base"].BaseEnv is BaseEnv
    loaded.close()
    assert "atroposlib.envs.base" not in sys.modules
    with pytest.raises(ConfigError):
        load(tmp_path / "bad.py", "import atroposlib.envs.base\nraise KeyError('x')\n")
    assert "atroposlib.envs.base" not in sys.modules


@pytest.mark.parametrize("line", ["import no_such_package_here", "import sys; sys.exit('set KEY first')"])
def test_what_a_file_raises_when_it_is_imported_is_shown_with_its_line(tmp_path: Path, line: str):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "bad.py", f"x = 1\n{line}\n")
    assert "bad.py" in str(caught.value) and "line 2" in str(caught.value) and "file_import" not in str(caught.value)


class Constructed(BaseEnv):
    def __init__(self, config: Any, server_configs: Any) -> None:
        super().__init__(config, server_configs)


class Loose(BaseEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.given = len(args)
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("kind", [BaseEnv, Constructed, Loose])
async def test_a_class_gets_the_arguments_that_it_takes(kind: type[BaseEnv]):
    with FileHost() as host:
        flags = {"slurm": True, "testing": False}
        env = await host.make_env(kind, make_services(), BaseEnvConfig(), [APIServerConfig()], flags)
    assert env.slurm is (kind is not Constructed) and len(env.server_configs) == 1
    assert getattr(env, "given", 4) == 4


async def raise_model_error() -> None:
    raise ModelError("no reply")


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (lambda self: sys.exit(3), r"sys\.exit\(3\)"),
        (lambda self: {}["no key"], "KeyError: 'no key'"),
    ],
)
async def test_a_setup_that_fails_or_exits_is_refused_with_its_trace(setup: Any, words: str):
    kind = type("Broken", (BaseEnv,), {"setup": setup})

    with pytest.raises(ConfigError, match=words) as caught, FileHost() as host:
        await host.make_env(kind, make_services(), BaseEnvConfig(), [], {})
    assert "Broken cannot be set up" in str(caught.value) and "test_file_host.py" in str(caught.value)


async def test_errors_of_ludus_pass_through_a_file():
    kind = type("Fails", (BaseEnv,), {"setup": lambda self: raise_model_error()})

    with pytest.raises(ModelError, match="no reply"), FileHost() as host:
        await host.make_env(kind, make_services(), BaseEnvConfig(), [], {})


async def test_code_runs_in_another_thread_with_the_context_of_the_caller():
    seen = contextvars.ContextVar("seen", default="")

    seen.set("mine")
    with FileHost() as host:
        words = await host.run(seen.get)

        async def look() -> bool:
            await asyncio.sleep(0)
            return threading.current_thread() is not threading.main_thread()

        result = words, await host.run(look), threading.current_thread().name
    assert result[:2] == ("mine", True)


async def test_a_host_that_ends_cancels_what_the_file_left_running():
    ended: list[str] = []
    kept: list[asyncio.Task[None]] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")

    with FileHost() as host:

        async def start() -> None:
            kept.append(asyncio.create_task(wait_for_ever()))
            await asyncio.sleep(0)

        await host.run(start)
    assert ended == ["yes"]


def test_an_instance_outside_of_a_run_is_refused():
    SERVICES.set(None)
    with pytest.raises(ConfigError, match="is run by Ludus"):
        BaseEnv(BaseEnvConfig())


def test_a_trace_has_no_frames_of_ludus():
    try:
        load_file(Path("absent.py"), "", {}, (BaseEnv,))
    except ConfigError as error:
        text = describe_trace(error)
    assert "test_file_host.py" in text and "src/ludus" not in text
