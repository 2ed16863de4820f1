"""How a service starts and ends: nothing accepted is lost, and every way to fail is one line and an exit code."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
from serving import command, running, start, wait_until

NUM_CLIENTS = 32


def test_sigterm_under_load_loses_no_accepted_request(bundle: Path) -> None:
    """Every request ends with its own answer or without a connection; nothing is cut off."""
    answered: list[str] = []
    lost: list[BaseException] = []
    stopped = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(timeout=60) as http:
            for turn in range(100_000):
                name = f"{number}/{turn}"
                try:
                    answer = http.post(f"{url}/v1/classify", json={"text": f"ticket {name}", "id": name})
                except httpx.ConnectError:
                    return
                except httpx.TransportError as error:
                    lost.append(error)
                    return
                assert answer.status_code == 200, answer.text
                assert answer.json()["results"][0]["id"] == name
                answered.append(name)
        assert stopped.is_set()

    with running(bundle, "--quiet") as served:
        url = served.url
        threads = [threading.Thread(target=client, args=(number,)) for number in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answered) > 100)
        stopped.set()
        assert served.stop() == 0
        for thread in threads:
            thread.join()
        assert not lost
        assert len(set(answered)) == len(answered) > 100
        assert "every accepted request was answered" in served.said[-1]


def test_readiness_ends_while_what_was_accepted_is_answered(bundle: Path) -> None:
    with running(bundle, "--max-wait-ms", "500") as served, httpx.Client(timeout=60) as probe:
        assert probe.get(f"{served.url}/readyz").json() == {"status": "ready"}
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(served.classify({"text": "hello"})))
        thread.start()
        wait_until(lambda: served.metric("slm_run_queue_texts") == 1)
        served.terminate()
        time.sleep(0.3)
        draining = probe.get(f"{served.url}/readyz")
        assert (draining.status_code, draining.json()) == (503, {"status": "draining"})
        assert draining.headers["connection"] == "close"
        thread.join()
        assert answers[0].status_code == 200
        assert served.process.wait(timeout=60) == 0, served.said  # a second signal would cut its end short


def test_it_is_alive_but_not_ready_while_the_model_loads(bundle: Path) -> None:
    served = start(bundle)
    try:
        wait_until(lambda: bool(served.said))
        seen = []
        while not seen or seen[-1][0] != 200:
            assert httpx.get(f"{served.url}/healthz").status_code == 200
            answer = httpx.get(f"{served.url}/readyz")
            seen.append((answer.status_code, answer.json()["status"]))
            if answer.status_code == 503:
                early = served.classify({"text": "too early"})
                assert early.status_code in (200, 503)
                assert early.status_code == 200 or early.headers["retry-after"] == "1"
        assert seen[-1] == (200, "ready")
        assert set(seen[:-1]) <= {(503, "loading")}
        assert served.stop() == 0
    finally:
        served.process.kill()


def test_a_second_signal_ends_at_once(bundle: Path) -> None:
    served = start(bundle, "--max-wait-ms", "3e6")
    try:
        wait_until(lambda: any("ready" in line for line in served.said))
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            # A body that never ends keeps the service from ending by itself before its deadline.
            client.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            client.sendall(b"Content-Length: 100\r\n\r\n{")
            time.sleep(0.3)
            served.process.send_signal(signal.SIGTERM)
            time.sleep(1.5)
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(10) == 130
    finally:
        served.process.kill()


def test_a_port_in_use_is_one_line(run, bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        outcome = run("serve", bundle, "--labels", "a,b", "--port", port)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert f"cannot listen on port {port} of 127.0.0.1 (Address already in use)" in outcome.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "exactly one of --labels"),
        (("--labels", "a,b", "--host", "0.0.0.0"), "no token"),
        (("--labels", "a,b", "--host", "::"), "no token"),
        (("--labels", "a,b", "--host", "no.such.host.invalid", "--insecure"), "cannot listen"),
        (("--labels", "a,b", "--host", "192.0.2.1", "--insecure"), "cannot listen"),
        (("--labels", "a,b", "--token-file", "missing"), "cannot read the token"),
        (("--labels", "a,b", "--max-queue", "10"), "a request may have 256 texts"),
        (("--labels", "a,a"), "there twice"),
        (("--labels", "a,b", "--deadline-s", "0"), "0.0"),
        (("--labels", "a,b", "--deadline-s", "nan"), "finite"),
        (("--labels", "a,b", "--port", "65536"), "65536"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(run, bundle: Path, flags: tuple[str, ...], message: str) -> None:
    outcome = run("serve", bundle, *flags)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err


def test_a_damaged_bundle_ends_the_service_with_exit_code_4(run, own_bundle: Path) -> None:
    (own_bundle / "decoder-fp32.data").write_bytes(b"damaged")
    outcome = run("serve", own_bundle, "--labels", "a,b", "--port", "0")
    assert outcome.code == 4
    assert "decoder-fp32.data" in outcome.err.splitlines()[-1]
    assert "Traceback" not in outcome.err


def test_labels_that_the_model_cannot_tell_apart_end_it_with_exit_code_2(run, bundle: Path) -> None:
    outcome = run(
        "serve", bundle, "--labels", "account_access,account_closure", "--scoring", "first-token", "--port", "0"
    )
    assert outcome.code == 2
    assert "cannot tell" in outcome.err.splitlines()[-1]


def test_what_is_missing_is_named_with_its_extra(run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    outcome = run("serve", bundle, "--labels", "a,b")
    assert outcome.code == 2
    assert "pip install 'slm-runtime[serve]'" in outcome.err


def test_a_token_opens_what_strangers_find_closed(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    right = {"headers": {"Authorization": "Bearer s3cret-token"}}
    with running(bundle, "--token-file", str(file)) as served:
        assert served.classify({"text": "hello"}, **right).status_code == 200
        assert served.metric("slm_run_ready", **right) == 1
        for value in ("", "Bearer", "Bearer wrong", "Bearer s3cret-toke", "Basic s3cret-token", "s3cret-token"):
            answer = served.classify({"text": "hello"}, headers={"Authorization": value} if value else {})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "unauthorized"
        both = [("Authorization", "Bearer s3cret-token"), ("Authorization", "Bearer wrong")]
        assert served.classify({"text": "hello"}, headers=both).status_code == 401
        assert served.classify({"text": "hello"}, headers={b"Authorization": b"Bearer \xff"}).status_code == 401
        assert httpx.get(f"{served.url}/metrics").status_code == 401
        assert httpx.get(f"{served.url}/secret").status_code == 401
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert httpx.get(f"{served.url}{path}").status_code == 200
        document = httpx.get(f"{served.url}/openapi.json").json()
        assert document["paths"]["/v1/classify"]["post"]["security"] == [{"token": []}]
    assert "s3cret" not in "".join(served.said)
    assert "s3cret" not in json.dumps(document)


def test_a_token_from_the_environment_opens_all_interfaces(bundle: Path) -> None:
    variables = {"SLM_RUN_SERVE_TOKEN": "from-the-environment"}
    with running(bundle, "--host", "0.0.0.0", variables=variables) as served:
        url = f"http://127.0.0.1:{served.port}/v1/classify"
        assert httpx.post(url, json={"text": "a"}).status_code == 401
        right = {"Authorization": "Bearer from-the-environment"}
        assert httpx.post(url, json={"text": "a"}, headers=right).status_code == 200


@pytest.mark.parametrize("token", ["", "  \n", "two words", "caf\u00e9", "tab\there"])
def test_a_token_that_no_header_can_carry_is_refused(run, bundle: Path, tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    file.write_text(token, encoding="utf-8")
    outcome = run("serve", bundle, "--labels", "a,b", "--token-file", file)
    assert outcome.code == 2
    assert "visible ASCII" in outcome.err
    assert not token.strip() or token not in outcome.err


def test_a_log_that_nobody_reads_any_more_stops_nothing(bundle: Path) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(command(bundle), stderr=write_end)
    os.close(write_end)
    try:
        said = b""
        while b"ready" not in said:
            said += os.read(read_end, 65536)
        os.close(read_end)
        url = said.decode().split()[3].rstrip(",")
        for _ in range(3):
            assert httpx.post(f"{url}/v1/classify", json={"text": "hello"}, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
