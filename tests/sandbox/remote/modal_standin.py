"""A stand-in of Modal's servers that really runs what its own client library asks for.

    modal_standin.py PORT FOLDER ROOT BWRAP

It speaks Modal's gRPC protocol with the classes that Modal's package brings: the part of the control plane that makes,
lists and ends sandboxes, and the command router that runs processes in them. Sandboxes are kept in memory; a process in
one is a bubblewrap container over the image folder ROOT, as root, without a network if the sandbox has it blocked. Of a
Dockerfile it carries out ENV, WORKDIR and RUN, over that folder; files that the client adds to an image are mounted.
What is not needed answers UNIMPLEMENTED. That Modal's own servers behave the same cannot be tested here.
"""

import asyncio
import base64
import hashlib
import json
import shlex
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_grpc, api_pb2
from modal_proto import task_command_router_grpc as router_grpc
from modal_proto import task_command_router_pb2 as router_pb2


def jwt():
    parts = [json.dumps({"alg": "none"}), json.dumps({"exp": time.time() + 3600}), "-"]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


class Process:
    """A program in a sandbox."""

    def __init__(self):
        self.output = {1: bytearray(), 2: bytearray()}
        self.ended = {1: False, 2: False}
        self.changed = asyncio.Condition()
        self.written = 0
        self.child = None
        self.tasks = []

    async def start(self, command):
        pipe = asyncio.subprocess.PIPE
        self.child = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        for number, stream in ((1, self.child.stdout), (2, self.child.stderr)):
            self.tasks.append(asyncio.create_task(self.collect(number, stream)))

    async def collect(self, number, stream):
        while data := await stream.read(65536):
            async with self.changed:
                self.output[number] += data
                self.changed.notify_all()
        async with self.changed:
            self.ended[number] = True
            self.changed.notify_all()

    async def kill(self):
        if self.child is not None and self.child.returncode is None:
            self.child.kill()
            await self.child.wait()


class Image(NamedTuple):
    layers: tuple
    folder: str
    env: dict


class BuildError(Exception):
    """A step of a Dockerfile failed."""


class Cloud:
    def __init__(self, port, folder, root, bwrap):
        self.port, self.folder, self.root, self.bwrap = port, folder, root, bwrap
        self.apps = {}
        self.images = {}
        self.building = asyncio.Lock()
        self.contents = {}
        self.mounts = {}
        self.sandboxes = {}
        self.trouble = {"times": 0}

    def command(self, sandbox, arguments):
        network = sandbox["definition"].network_access.network_access_type
        blocked = network == api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
        image = self.images[sandbox["definition"].image_id]
        files = {name: path for id in sandbox["definition"].mount_ids for name, path in self.mounts[id].items()}
        return [
            self.bwrap,
            *(part for layer in image.layers for part in ("--overlay-src", layer)),
            *("--tmp-overlay", "/", "--proc", "/proc", "--dev", "/dev"),
            *(part for name, path in files.items() for part in ("--ro-bind", path, name)),
            *("--chdir", image.folder),
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--tmpfs", "/tmp", "--die-with-parent"),
            *(("--unshare-net",) if blocked else ()),
            *("--cap-add", "ALL", "--clearenv", "--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            *(part for name, value in (image.env | sandbox["env"]).items() for part in ("--setenv", name, value)),
            *("--", *arguments),
        ]

    async def build(self, image):
        """An image, by the lines of its Dockerfile."""
        image_id = f"im-{hashlib.sha256(image.SerializeToString()).hexdigest()[:20]}"
        if image_id in self.images:
            return image_id
        bases = {base.docker_tag: self.images[base.image_id] for base in image.base_images}
        made = Image((self.root,), "/", {})
        for line in image.dockerfile_commands:
            name, _, rest = line.partition(" ")
            if name == "FROM":
                made = bases.get(rest.split()[0], made)
            elif name == "WORKDIR":
                made = Image(made.layers, rest, made.env)
                made = await self.run(made, f"mkdir -p {rest}", image_id)
            elif name == "ENV":
                made = Image(made.layers, made.folder, made.env | dict([shlex.split(rest)[0].split("=", 1)]))
            elif name == "RUN":
                made = await self.run(made, rest, image_id)
        self.images[image_id] = made
        return image_id

    async def run(self, image, command, image_id):
        number = sum(1 for path in self.folder.glob(f"{image_id}-*"))
        layer, work = self.folder / f"{image_id}-{number}", self.folder / f"work-{image_id}-{number}"
        for path in (layer, work):
            path.mkdir()
        words = [self.bwrap, *(part for layer in image.layers for part in ("--overlay-src", layer))]
        words += ["--overlay", str(layer), str(work), "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/sh", "-c"]
        child = await asyncio.create_subprocess_exec(*words, command, stderr=asyncio.subprocess.PIPE)
        _, words = await child.communicate()
        if child.returncode:
            raise BuildError(f"RUN {command}: exit code {child.returncode}: {words.decode()}")
        return Image((*image.layers, str(layer)), image.folder, image.env)

    def sandbox(self, sandbox_id):
        if sandbox_id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, "no such sandbox")
        return self.sandboxes[sandbox_id]

    def of_task(self, task_id):
        for sandbox in self.sandboxes.values():
            if sandbox["task"] == task_id:
                if sandbox["ended"]:
                    raise GRPCError(Status.NOT_FOUND, "the task has ended")
                return sandbox
        raise GRPCError(Status.NOT_FOUND, "no such task")


def rest_unimplemented(base):
    def refuse(name):
        async def unimplemented(self, stream):
            raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not in this stand-in")

        return unimplemented

    def fill(cls):
        missing = {name: refuse(name) for name in base.__abstractmethods__ if name not in vars(cls)}
        return type(cls.__name__, (cls, base), missing)

    return fill


def unary(handler):
    async def answer(self, stream):
        request = await stream.recv_message()
        if self.cloud.trouble["times"] > 0:
            self.cloud.trouble["times"] -= 1
            raise GRPCError(Status.INTERNAL, "trouble was asked for")
        await stream.send_message(await handler(self, request))

    return answer


@rest_unimplemented(api_grpc.ModalClientBase)
class Control:
    def __init__(self, cloud):
        self.cloud = cloud

    @unary
    async def ClientHello(self, _):
        return api_pb2.ClientHelloResponse()

    @unary
    async def AuthTokenGet(self, _):
        return api_pb2.AuthTokenGetResponse(token=jwt())

    @unary
    async def AppGetOrCreate(self, request):
        app = self.cloud.apps.setdefault(request.app_name, f"ap-{uuid.uuid4().hex[:12]}")
        return api_pb2.AppGetOrCreateResponse(app_id=app)

    @unary
    async def EnvironmentGetOrCreate(self, _):
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06", webhook_suffix="")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    @unary
    async def ImageGetOrCreate(self, request):
        if any("missing" in line for line in request.image.dockerfile_commands):
            result = api_pb2.GenericResult(
                status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception="manifest unknown"
            )
            return api_pb2.ImageGetOrCreateResponse(image_id="im-bad", result=result)
        try:
            async with self.cloud.building:
                image_id = await self.cloud.build(request.image)
        except BuildError as error:
            status = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
            result = api_pb2.GenericResult(status=status, exception=str(error))
            return api_pb2.ImageGetOrCreateResponse(image_id="im-bad", result=result)
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=result)

    @unary
    async def MountBatchedCheckExistence(self, request):
        missing = [name for name in request.sha256_hex_hashes if name not in self.cloud.contents]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    @unary
    async def MountPutFile(self, request):
        if request.data:
            path = self.cloud.folder / f"file-{request.sha256_hex}"
            path.write_bytes(request.data)
            path.chmod(0o755)
            self.cloud.contents[request.sha256_hex] = str(path)
        return api_pb2.MountPutFileResponse(exists=request.sha256_hex in self.cloud.contents)

    @unary
    async def MountGetOrCreate(self, request):
        mount_id = f"mo-{uuid.uuid4().hex[:12]}"
        self.cloud.mounts[mount_id] = {file.filename: self.cloud.contents[file.sha256_hex] for file in request.files}
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id)

    @unary
    async def SecretGetOrCreate(self, request):
        return api_pb2.SecretGetOrCreateResponse(secret_id=f"st-{request.deployment_name}")

    @unary
    async def SandboxCreateV2(self, request):
        sandbox_id, task = f"sb-{uuid.uuid4().hex[:20]}V", f"ta-{uuid.uuid4().hex[:20]}V"
        env = {}
        for source in request.secret_sources:
            env.update(dict(source.env.contents))
        self.cloud.sandboxes[sandbox_id] = {
            "id": sandbox_id,
            "task": task,
            "app": request.app_id,
            "definition": request.definition,
            "env": env,
            "tags": list(request.tags),
            "processes": {},
            "ended": False,
        }
        return api_pb2.SandboxCreateV2Response(sandbox_id=sandbox_id, task_id=task)

    @unary
    async def SandboxGetCommandRouterAccess(self, request):
        if request.sandbox_id:
            self.cloud.sandbox(request.sandbox_id)
        url = f"http://127.0.0.1:{self.cloud.port}"
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=url, jwt=jwt())

    @unary
    async def SandboxTerminateV2(self, request):
        sandbox = self.cloud.sandbox(request.sandbox_id)
        sandbox["ended"] = True
        for process in sandbox["processes"].values():
            await process.kill()
        return api_pb2.SandboxTerminateResponse()

    @unary
    async def SandboxWaitV2(self, request):
        ended = self.cloud.sandbox(request.sandbox_id)["ended"]
        status = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED if ended else 0
        return api_pb2.SandboxWaitResponse(result=api_pb2.GenericResult(status=status))

    @unary
    async def SandboxListV2(self, request):
        found = [s for s in self.cloud.sandboxes.values() if s["app"] == request.app_id and not s["ended"]]
        infos = [
            api_pb2.SandboxInfo(id=s["id"], app_id=s["app"], created_at=time.time(), tags=s["tags"]) for s in found
        ]
        return api_pb2.SandboxListResponse(sandboxes=[] if request.before_timestamp else infos)

    @unary
    async def SandboxTagsGetV2(self, request):
        return api_pb2.SandboxTagsGetResponse(tags=self.cloud.sandbox(request.sandbox_id)["tags"])


@rest_unimplemented(router_grpc.TaskCommandRouterBase)
class Router:
    def __init__(self, cloud):
        self.cloud = cloud

    def process(self, request):
        process = self.cloud.of_task(request.task_id)["processes"].get(request.exec_id)
        if process is None:
            raise GRPCError(Status.NOT_FOUND, "no such exec")
        return process

    @unary
    async def TaskExecStart(self, request):
        sandbox = self.cloud.of_task(request.task_id)
        if request.exec_id not in sandbox["processes"]:
            process = sandbox["processes"][request.exec_id] = Process()
            await process.start(self.cloud.command(sandbox, request.command_args))
        return router_pb2.TaskExecStartResponse()

    @unary
    async def TaskExecStdinWrite(self, request):
        process = self.process(request)
        new = request.data[max(0, process.written - request.offset) :]
        process.written += len(new)
        try:
            process.child.stdin.write(new)
            await process.child.stdin.drain()
            if request.eof:
                process.child.stdin.close()
        except OSError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from error
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecStdioRead(self, stream):
        request = await stream.recv_message()
        process = self.process(request)
        number = 1 if request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT else 2
        offset = request.offset
        while True:
            async with process.changed:
                while len(process.output[number]) <= offset and not process.ended[number]:
                    await process.changed.wait()
                data = bytes(process.output[number][offset : offset + 200_000])
            if not data:
                return
            offset += len(data)
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))

    @unary
    async def TaskExecWait(self, request):
        return router_pb2.TaskExecWaitResponse(code=await self.process(request).child.wait())


async def main():
    port, folder, root, bwrap = sys.argv[1:]
    cloud = Cloud(int(port), Path(folder), root, bwrap)
    server = Server([Control(cloud), Router(cloud)])
    await server.start("127.0.0.1", int(port))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    for sandbox in cloud.sandboxes.values():
        for process in sandbox["processes"].values():
            await process.kill()
    server.close()


if __name__ == "__main__":
    assert Empty
    asyncio.run(main())
