"""The image of deploy/Containerfile, built here without a container runtime: its instructions run in directories.

The first stage is Debian by debootstrap. The second one is unpacked from the packages that the distroless image is made
of. It needs root, a Debian mirror, wheels of an index, and the wheel for Python 3.13 that `make wheels` builds.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.deployed import DEPLOY
from harness.pages import DOCS, ROOT
from harness.tools import missing, need_module, need_tool
from server.probes import eventually

# github.com/GoogleContainerTools/distroless: PACKAGES in static/config.bzl to python3/config.bzl, and ca-certificates.
PACKAGES = """
base-files netbase tzdata tzdata-legacy media-types ca-certificates
libc6 libssl3t64 libzstd1 zlib1g libgomp1 libstdc++6 libgcc-s1 gcc-14-base
libbz2-1.0 libdb5.3t64 libexpat1 liblzma5 libsqlite3-0 libuuid1 libncursesw6 libtinfo6 libcom-err2 libcrypt1 libc-bin
libgssapi-krb5-2 libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 libnsl2 libreadline8t64 libtirpc3t64 libffi8
libpython3.13-minimal libpython3.13-stdlib python3.13-minimal python3.13-venv
"""
OTHERS = ("click", "python-dotenv", "flask", "py-spy", "setproctitle")
APP = """
import os

from flask import Flask

application = Flask(__name__)


@application.get("/")
def index():
    return [os.getuid(), os.getppid()]
"""
# Becomes process 1 of a container: its own processes and mounts, and nothing else of the root.
LAUNCH = """
import json, os, subprocess, sys
root, directory, user, command, environment = json.loads(sys.argv[1])
for what in (["--rbind", "/dev", root + "/dev"], ["-t", "proc", "proc", root + "/proc"]):
    subprocess.run(["mount", *what], check=True)
os.chroot(root)
os.chdir(directory)
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.environ["PATH"] = environment["PATH"]
os.execvpe(command[0], command, environment)
"""


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}"
    return done.stdout


def stages():
    """The instructions of each stage."""
    found = []
    for each in need_module("dockerfile").parse_file(str(DEPLOY / "Containerfile")):
        if each.cmd.upper() == "FROM":
            found.append([])
        found[-1].append(each)
    return found


def size(root):
    """Bytes of all files, each counted once."""
    seen = {}
    for directory, _, names in os.walk(root):
        for name in names:
            status = os.lstat(os.path.join(directory, name))
            seen[status.st_ino] = status.st_size
    return sum(seen.values())


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The root of the second stage."""
    if os.getuid():
        missing("only root can build an image here")
    wheels = sorted((ROOT / "build/wheels").glob("tailrace-*-cp313-*.whl"))
    if not wheels:
        missing("no wheel for Python 3.13: `make wheels` builds it")
    directory = tmp_path_factory.mktemp("image")
    context, build, root = directory / "context", directory / "build", directory / "image"
    (context / "shop").mkdir(parents=True)
    (context / "shop/wsgi.py").write_text(APP)
    (context / "requirements.txt").write_text("\n".join(("tailrace", *OTHERS)))
    first, second = stages()
    assert first[0].value[0].endswith("/debian:13-slim")
    run(need_tool("debootstrap"), "--variant=minbase", "trixie", build)
    # What the machine's own configuration reaches; the root of the image knows neither mirror nor certificates.
    (build / "wheels").mkdir()
    tags = [f"--platform=manylinux{tag}_x86_64" for tag in ("1", "2014", "_2_5", "_2_17", "_2_28")]
    only = ["--only-binary=:all:", "--python-version=3.13", *tags]
    run(sys.executable, "-m", "pip", "download", "--quiet", *only, "--dest", build / "wheels", *OTHERS)
    shutil.copy(wheels[-1], build / "wheels")
    shutil.copy("/etc/resolv.conf", build / "etc")
    local = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    for each in first[1:]:
        if each.cmd.upper() == "RUN":
            run("chroot", build, "sh", "-ec", " ".join(each.value), env=local)
        else:
            source, target = each.value
            shutil.copy(context / source, f"{build}{target}")
    (build / "debs").mkdir()
    run("chroot", build, "sh", "-ec", f"cd /debs && apt-get download --quiet {' '.join(PACKAGES.split())}")
    for package in (build / "debs").glob("*.deb"):
        run("dpkg-deb", "--extract", package, root)
    for name in ("python", "python3"):
        (root / "usr/bin" / name).symlink_to("python3.13")
    for each in second[1:]:
        if each.cmd.upper() == "COPY":
            source, target = each.value
            shutil.copytree(build / source[1:] if each.flags else context / source, f"{root}{target}", symlinks=True)
    return root


@pytest.mark.nightly()
def test_it_is_smaller_than_the_guide_says_and_has_no_shell(image):
    whole = size(image)
    print(f"{whole / 1e6:.0f} MB, of which the environment has {size(image / 'srv') / 1e6:.0f} MB")
    assert whole < 100e6
    guide = (DOCS / "guides/containers.md").read_text()
    assert "below 100 MB" in guide
    (told,) = re.findall(r"^\| total \| (\d+) MB \|$", guide, re.MULTILINE)
    assert abs(whole / 1e6 - int(told)) < 5
    names = {path.name for path in (*(image / "usr/bin").iterdir(), *(image / "srv/shop/venv/bin").iterdir())}
    assert not names & {"sh", "dash", "bash", "apt", "dpkg", "gcc", "cc", "pip", "pip3"}


@pytest.mark.nightly()
def test_its_command_serves_as_process_1_and_its_health_check_succeeds(image):
    _, second = stages()
    values = {each.cmd.upper(): each for each in second}
    (user,) = {int(number) for number in values["USER"].value[0].split(":")}
    environment = dict(re.findall(r"(\w+)=(\S+)", values["ENV"].original))
    assert list(values["ENTRYPOINT"].value) == []

    def inside(command):
        told = json.dumps([str(image), values["WORKDIR"].value[0], user, list(command), environment])
        return [sys.executable, "-c", LAUNCH, told]

    isolated = [need_tool("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child"]
    loopback = ["sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    with (image.parent / "log").open("wb") as log:
        server = subprocess.Popen([*isolated, *loopback, *inside(values["CMD"].value)], stdout=log, stderr=log)
    try:
        (first,) = eventually(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text, "process 1").split()
        enter = [need_tool("nsenter"), "--target", first, "--net"]
        check = list(values["HEALTHCHECK"].value)
        command = [*enter, "unshare", "--mount", *inside(check[check.index("CMD") + 1 :])]
        eventually(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0, "health", 60)
        ask = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/').read().decode())"
        uid, parent = json.loads(run(*enter, sys.executable, "-c", ask))
        assert (uid, parent) == (user, 1)
        os.kill(int(first), signal.SIGTERM)
        assert server.wait(30) == 0
    except BaseException:
        sys.stderr.write((image.parent / "log").read_text())
        raise
    finally:
        server.kill()
        server.wait()
