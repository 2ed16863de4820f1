"""Full queues, late answers, clients that are slow, gone or hostile: the others notice nothing, and nothing is a 5xx
that should be a 4xx.
"""

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from serving import Served, running, wait_until

JSON = {"Content-Type": "application/json"}
# Batches wait for most of an hour, so that what is in the queue stays there.
STUCK = ("--max-wait-ms", "3e6")


@pytest.fixture(scope="module")
def served(bundle: Path) -> Iterator[Served]:
    with running(bundle, "--max-texts", "50") as service:
        yield service
        assert httpx.get(f"{service.url}/healthz").status_code == 200


def send(served: Served, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/classify", content=body, headers=headers or JSON, timeout=60)


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message"}
    assert answer.json()["error"]["code"] == code


def test_a_full_queue_refuses_and_says_when_to_come_again(bundle: Path) -> None:
    with running(bundle, *STUCK, "--max-queue", "3", "--max-texts", "3") as served, ThreadPoolExecutor() as pool:
        waiting = pool.submit(served.classify, {"texts": ["one", "two"]})
        wait_until(lambda: served.metric("slm_run_queue_texts") == 2)
        refused = served.classify({"texts": ["three", "four"]})
        assert_problem(refused, 503, "queue_full")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        last = pool.submit(served.classify, {"text": "still fits"})
        wait_until(lambda: served.metric("slm_run_queue_texts") == 3)
        assert served.stop() == 0  # the end hands out what waits
        assert [waiting.result().status_code, last.result().status_code] == [200, 200]


def test_a_late_request_is_told_so_and_its_texts_are_not_scored(bundle: Path) -> None:
    with running(bundle, *STUCK, "--deadline-s", "0.3") as served:
        assert_problem(served.classify({"texts": ["one", "two"]}), 504, "deadline")
        assert served.metric("slm_run_queue_texts") == 0
        assert served.metric('slm_run_texts_total{outcome="dropped"}') == 2
        assert served.metric('slm_run_texts_total{outcome="labelled"}') == 0


def test_texts_of_a_vanished_client_are_dropped(bundle: Path) -> None:
    with running(bundle, *STUCK) as served:
        with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
            client.sendall(request_of(b'{"texts": ["one", "two"]}'))
            wait_until(lambda: served.metric("slm_run_queue_texts") == 2)
        wait_until(lambda: served.metric("slm_run_queue_texts") == 0)
        assert served.metric('slm_run_texts_total{outcome="dropped"}') == 2
        assert served.metric('slm_run_texts_total{outcome="labelled"}') == 0


def test_a_slow_upload_holds_nobody_and_ends(bundle: Path) -> None:
    with running(bundle, "--deadline-s", "1") as served:
        with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
            client.sendall(request_of(b'{"text": "never complete"}')[:-5])
            assert served.classify({"text": "hello"}).status_code == 200
            answer = read_all(client)  # comes when the deadline has passed
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"slow_upload" in answer


def test_a_client_that_does_not_read_holds_nobody(served: Served) -> None:
    body = request_of(json.dumps({"texts": ["hello"] * 50}).encode())
    with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(body * 20)
        for _ in range(5):
            assert served.classify({"text": "hello"}).status_code == 200


def test_a_declared_size_over_the_limit_is_refused_before_it_is_sent(served: Served) -> None:
    head = (
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
    )
    with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_growing_body_is_refused_at_the_limit(served: Served) -> None:
    answer = httpx.post(
        f"{served.url}/v1/classify", content=(b"x" * 65536 for _ in range(100)), headers=JSON, timeout=60
    )
    assert_problem(answer, 413, "too_large")


def test_a_text_of_a_million_bytes_is_cut_as_in_classify(served: Served) -> None:
    (result,) = served.classify({"text": "a b c d " * 125_000}).json()["results"]
    assert result["truncated"] is True
    assert result["error"] is None


def test_too_many_texts_are_refused(served: Served) -> None:
    assert_problem(served.classify({"texts": ["x"] * 51}), 413, "too_large")


DEEP = b"[" * 200_000
HOSTILE = {
    "nothing": (b"", 400),
    "no JSON": (b"text=hello", 400),
    "half an object": (b'{"text": "hel', 400),
    "two values": (b'{"text": "a"} {"text": "b"}', 400),
    "a byte order mark": (b'\xef\xbb\xbf{"text": "a"}', 400),
    "UTF-16": ('{"text": "a"}'.encode("utf-16"), 400),
    "Latin-1": (b'{"text": "caf\xe9"}', 400),
    "an encoded surrogate": (b'{"text": "\xed\xa0\x80"}', 400),
    "a control character": (b'{"text": "a\x00b"}', 400),
    "deep arrays": (DEEP, 400),
    "deep arrays, closed": (DEEP + b"]" * 200_000, 400),
    "deep objects": (b'{"a":' * 100_000, 400),
    "depth in a place": (b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
    "NaN": (b'{"text": "a", "id": NaN}', 400),
    "infinity": (b'{"text": "a", "id": -Infinity}', 400),
    "a number beyond floats": (b'{"text": "a", "id": 1e999}', 400),
    "a number of 10,000 digits": (b'{"text": "a", "id": ' + b"9" * 10_000 + b"}", 400),
    "a doubled key": (b'{"text": "a", "text": "b"}', 400),
    "a doubled key with another spelling": (b'{"text": "a", "\\u0074ext": "b"}', 400),
    "null": (b"null", 422),
    "a number": (b"5", 422),
    "an array": (b'["a"]', 422),
    "an empty object": (b"{}", 422),
    "both keys": (b'{"text": "a", "texts": ["b"]}', 422),
    "an unknown key": (b'{"text": "a", "lable": 1}', 422),
    "a text that is null": (b'{"text": null}', 422),
    "a text that is a number": (b'{"text": 5}', 422),
    "a text that is an object": (b'{"text": {"text": "a"}}', 422),
    "no texts": (b'{"texts": []}', 422),
    "texts that are one string": (b'{"texts": "abc"}', 422),
    "a null among the texts": (b'{"texts": ["a", null]}', 422),
    "an id beside texts": (b'{"texts": ["a", "b"], "id": 1}', 422),
    "an object without a text": (b'{"texts": [{"id": 1}]}', 422),
    "an object with more": (b'{"texts": [{"text": "a", "label": "b"}]}', 422),
    "an id that is an object": (b'{"text": "a", "id": {}}', 422),
    "an id that is an array": (b'{"texts": [{"text": "a", "id": []}]}', 422),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_the_clients_fault(served: Served, name: str) -> None:
    body, status = HOSTILE[name]
    assert_problem(send(served, body), status, "invalid_json" if status == 400 else "invalid_request")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "text/plain"}, "unsupported_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "unsupported_type"),
        ({"Content-Type": ""}, "unsupported_type"),
        ({"Content-Type": "application/json; charset=latin-1"}, "unsupported_type"),
        (JSON | {"Content-Encoding": "gzip"}, "unsupported_encoding"),
        (JSON | {"Content-Encoding": "br"}, "unsupported_encoding"),
    ],
)
def test_other_types_and_compressed_bodies_are_refused(served: Served, headers: dict[str, str], code: str) -> None:
    bomb = gzip.compress(b'{"text": "' + b"a" * 50_000_000 + b'"}')
    assert_problem(send(served, bomb, headers), 415, code)


@pytest.mark.parametrize("text", ["\u0000", "a\u0000b", "\ufeff", "\U0010ffff", "<|im_end|>", "'); DROP TABLE", "%n%s"])
def test_strange_texts_are_texts(served: Served, text: str) -> None:
    (result,) = served.classify({"text": text}).json()["results"]
    assert (result["label"] is None) == (text == "\ufeff")  # which is blank


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_named_as_such(served: Served, method: str) -> None:
    answer = httpx.request(method, f"{served.url}/v1/classify")
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/classify/", "//v1/classify", "/v1/../etc/passwd", "/%00", "/v1/classify%2f", "/docs/x"]
)
def test_other_paths_are_not_found(served: Served, path: str) -> None:
    with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
        client.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        assert read_all(client).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /healthz HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_get_a_4xx(served: Served, raw: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
        client.settimeout(60)
        client.sendall(raw)
        assert read_all(client).startswith(b"HTTP/1.1 4")


def test_many_idle_connections_hold_nobody(served: Served) -> None:
    clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(200)]
    try:
        assert served.classify({"text": "hello"}).status_code == 200
    finally:
        for client in clients:
            client.close()


def test_clients_that_leave_in_the_middle_hold_nobody(served: Served) -> None:
    def leave() -> None:
        for length in range(0, 200, 7):
            with closing(socket.create_connection(("127.0.0.1", served.port))) as client:
                client.sendall(request_of(b'{"texts": ["one", "two", "three"]}')[:length])

    threads = [threading.Thread(target=leave) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(20):
        assert served.classify({"text": f"hello {number}"}).status_code == 200
    for thread in threads:
        thread.join()
    wait_until(lambda: served.metric("slm_run_queue_texts") == 0)


def request_of(body: bytes) -> bytes:
    head = "POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_all(client: socket.socket) -> bytes:
    """All bytes until the other side closes, also where it does so without having read ours."""
    received = b""
    try:
        while chunk := client.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received
