"""FluxMQ is a peer where its binary is given, and no other way."""

import json
from pathlib import Path

import pytest
from bench.compare.peers import FLUXMQ, PEERS, found_peers

PEER = next(peer for peer in PEERS if peer.name == "fluxmq")


def test_without_its_binary_it_is_no_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FLUXMQ, raising=False)
    assert PEER not in found_peers()

    monkeypatch.setenv(FLUXMQ, str(tmp_path / "absent"))
    assert PEER not in found_peers()


def test_it_is_started_on_free_ports_in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "fluxmq"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv(FLUXMQ, str(binary))
    assert PEER in found_peers()

    command = PEER.command(str(binary), tmp_path, [1, 2, 3, 4, 5])
    endpoints = PEER.endpoints([1, 2, 3, 4, 5], tmp_path)

    assert command.words[:2] == [str(binary), "--config"]
    settings = json.loads(Path(command.words[2]).read_text())
    assert settings["server"]["amqp091"]["plain"]["addr"] == f"127.0.0.1:{endpoints['amqp'].port}"
    assert settings["server"]["amqp"]["plain"]["addr"] == f"127.0.0.1:{endpoints['amqp10'].port}"
    assert settings["server"]["tcp"]["v5"]["addr"] == f"127.0.0.1:{endpoints['mqtt5'].port}"
    assert Path(settings["storage"]["badger_dir"]).parent == tmp_path
