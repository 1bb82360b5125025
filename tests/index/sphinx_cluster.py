"""A SphinxQL cluster of two shards behind a distributed table, by three daemons."""

import shutil
import socket
import subprocess
import time

import pytest

from spaniel.config import ShardConfig, SphinxConfig
from spaniel.index.remote.sphinx import sphinx_tables

needs_searchd = pytest.mark.skipif(
    shutil.which("searchd") is None, reason="needs searchd (Debian: sphinxsearch)"
)


class SphinxCluster:
    """Two empty shards and the daemon in front, listening.

    Attributes:
        cfg: how to reach them.
        daemons: both shards, then the one in front.
    """

    def __init__(self, folder):
        sql0, api0, sql1, api1, sql, api = _free_ports(6)
        self.daemons = []
        for name, *ports in (("shard0", sql0, api0), ("shard1", sql1, api1)):
            tables = sphinx_tables("documents", "passages", str(folder / name))
            self.daemons.append(_Daemon(folder / name, tables, *ports))
        tables = "".join(
            f"index {table} {{\n  type = distributed\n"
            f"  agent = 127.0.0.1:{api0}:{table}\n  agent = 127.0.0.1:{api1}:{table}\n}}\n"
            for table in ("documents", "passages")
        )
        self.daemons.append(_Daemon(folder / "front", tables, sql, api))
        self.cfg = SphinxConfig(
            port=sql, shards=(ShardConfig(port=sql0), ShardConfig(port=sql1)), timeout_s=5
        )

    def stop(self):
        for daemon in self.daemons:
            daemon.stop()


class _Daemon:
    """One searchd; ``tables`` is the part of the configuration before the searchd section."""

    def __init__(self, folder, tables, sql_port, api_port):
        folder.mkdir(parents=True, exist_ok=True)
        conf = folder / "sphinx.conf"
        conf.write_text(
            f"{tables}searchd {{\n  listen = 127.0.0.1:{sql_port}:mysql41\n"
            f"  listen = 127.0.0.1:{api_port}\n  pid_file = {folder}/pid\n"
            f"  log = {folder}/log\n  binlog_path =\n  workers = threads\n"
            "  max_packet_size = 64M\n}\n"
        )
        self.process = subprocess.Popen(
            ["searchd", "--nodetach", "-c", conf], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", sql_port)) == 0:
                    return
            assert self.process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
