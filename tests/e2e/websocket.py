"""A client of WebSockets (RFC 6455), nothing but the standard library.

    with WebSocket(server.port, "/ws/execution?token=" + token) as socket:
        socket.send({"action": "stop"})
        frame = socket.frame()                 the next JSON message; None when the server closed
"""
import base64
import hashlib
import json
import os
import socket
import struct

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class WebSocket:
    def __init__(self, port, target, headers=(), host=None, timeout=60):
        self.port, self.target, self.headers, self.host = port, target, list(headers), host
        self.timeout, self.code, self.buffer = timeout, None, b""

    def __enter__(self):
        self.connect()
        return self

    def __exit__(self, *_):
        self.drop()

    def connect(self):
        self.raw = socket.create_connection(("127.0.0.1", self.port), timeout=self.timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET %s HTTP/1.1" % self.target, "Host: %s" % (self.host or "127.0.0.1:%d" % self.port),
                 "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: " + key,
                 "Sec-WebSocket-Version: 13", *self.headers, "", ""]
        self.raw.sendall("\r\n".join(lines).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            more = self.raw.recv(4096)
            assert more, "the server closed during the handshake: %r" % head
            head += more
        head, self.buffer = head.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        said = {k.strip().lower(): v.strip() for k, _, v in
                (line.partition(":") for line in head.decode().split("\r\n")[1:])}
        digest = hashlib.sha1((key + GUID).encode()).digest()
        assert said["sec-websocket-accept"] == base64.b64encode(digest).decode(), said
        return self

    # ---- frames ----

    def send_raw(self, opcode, data=b"", fin=True, mask=True):
        n = len(data)
        head = bytes([opcode | (0x80 if fin else 0)])
        bit = 0x80 if mask else 0
        if n < 126:
            head += bytes([bit | n])
        elif n < 65536:
            head += bytes([bit | 126]) + struct.pack(">H", n)
        else:
            head += bytes([bit | 127]) + struct.pack(">Q", n)
        if mask:
            key = os.urandom(4)
            long = (key * (n // 4 + 1))[:n]
            data = (int.from_bytes(data, "big") ^ int.from_bytes(long, "big")).to_bytes(n, "big") if n else b""
            head += key
        self.raw.sendall(head + data)

    def send(self, message):
        self.send_raw(TEXT, json.dumps(message).encode())

    def take(self, n):
        while len(self.buffer) < n:
            more = self.raw.recv(65536)
            if not more:
                return None
            self.buffer += more
        out, self.buffer = self.buffer[:n], self.buffer[n:]
        return out

    def frame_raw(self):
        """(opcode, payload), or None at the end."""
        head = self.take(2)
        if head is None:
            return None
        assert head[0] & 0x70 == 0 and not head[1] & 0x80, "reserved bits, or a masked server frame"
        n = head[1] & 0x7f
        if n == 126:
            n = struct.unpack(">H", self.take(2))[0]
        elif n == 127:
            n = struct.unpack(">Q", self.take(8))[0]
        payload = self.take(n)
        return None if payload is None else (head[0] & 0xf, payload)

    def frame(self):
        while True:
            got = self.frame_raw()
            if got is None:
                return None
            opcode, payload = got
            if opcode == PING:
                self.send_raw(PONG, payload)
            elif opcode == CLOSE:
                self.code = struct.unpack(">H", payload[:2])[0] if payload else 1005
                return None
            elif opcode == TEXT:
                return json.loads(payload)

    def until(self, *types):
        """Frames up to the first of one of these types, that one last."""
        found = []
        while True:
            frame = self.frame()
            assert frame is not None, "closed with %s before %s; after %r" % (self.code, types, found[-5:])
            found.append(frame)
            if frame["type"] in types:
                return found

    def closed(self):
        """The close code, after whatever else comes."""
        while self.frame() is not None:
            pass
        return self.code

    def close(self):
        """By the protocol: says so, and waits for the answer."""
        self.send_raw(CLOSE, struct.pack(">H", 1000))
        return self.closed()

    def drop(self):
        """As when a browser is killed."""
        self.raw.close()
