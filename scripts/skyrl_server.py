"""SkyRL's Tinker server on this machine, without uv and on Python 3.11.

    python scripts/skyrl_server.py api --base-model FOLDER --backend jax --host 127.0.0.1 --port 8800

Takes the options of `python -m skyrl.tinker.api`. Run it with the interpreter that SkyRL is installed for
(`scripts/setup-skyrl` prints it). Two things are different from SkyRL's own start: the engine is started with the same
interpreter instead of `uv run`, and `typing.TypedDict` is replaced by that of typing_extensions, which pydantic needs
below Python 3.12.
"""

import argparse
import runpy
import sys
import typing

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict


def serve() -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8800)
    given = vars(parser.parse_args())
    api._build_uv_run_cmd_engine = lambda parent, config: [sys.executable, __file__, "engine", *config_to_argv(config)]
    fields = {name: value for name, value in given.items() if name in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(fields)
    uvicorn.run(api.app, host=given["host"], port=given["port"], log_level="info")


role = sys.argv.pop(1)
if role == "engine":
    runpy.run_module("skyrl.tinker.engine", run_name="__main__")
else:
    serve()
