"""A thread in each process that ends the run if another process is gone.

JAX's own heartbeats are no substitute. Measured with two processes on one host,
one killed or stopped in the middle of RL, seconds until the other one ends:

                            killed      stopped
  this watchdog (30 s)      0.2, 0.7    29, 31    a sentence, which names it
  JAX's heartbeats (100 s)  0.5, 0.8    57, 82    an error of Gloo; an abort
  JAX's heartbeats (30 s)               17, 20    with a stack of C++

The abort names a peer only if that is not process 0, and JAX has no hook before
it. On a TPU, where no connection of Gloo breaks, a killed process is like a
stopped one.

The first process is the hub: the others connect to it by TCP, and all send a
beat every second. A connection that closes without a goodbye means a killed
process; no beat means a stopped one, or a broken network.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from typing import Any, Callable

from jaxrl_llm.base import plain

_BEAT = 1.0  # seconds between two beats
_CONNECT = 5.0  # seconds to try one address of the hub


class _Peer:
  """Connection to another process.

  Attributes:
    index: number of the process.
    heard: when it was heard last, in monotonic seconds.
    left: whether it said goodbye.
  """

  def __init__(self, connection: socket.socket, index: int):
    self.connection, self.index = connection, index
    self.heard, self.left = time.monotonic(), False
    self._text = b''
    connection.settimeout(_CONNECT)

  def greeted(self, secret: str) -> bool:
    """Waits for the first message; returns whether it has the secret."""
    last = time.monotonic() + _CONNECT
    try:
      while b'\n' not in self._text:
        piece = self.connection.recv(1 << 10)
        if not piece or time.monotonic() > last:
          return False
        self._text += piece
      line, self._text = self._text.split(b'\n', 1)
      message = json.loads(line)
      self.index = int(message.get('index', self.index))
      return message['secret'] == secret
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
      return False  # a stranger, such as a scan of ports

  def send(self, **message: Any) -> None:
    # Where the connection is closed, its reader notices.
    with contextlib.suppress(OSError):
      self.connection.sendall(json.dumps(message).encode() + b'\n')

  def read(self) -> list[dict[str, Any]] | None:
    """Returns messages that have arrived; None once it is closed."""
    try:
      piece = self.connection.recv(1 << 16)
    except TimeoutError:
      return []
    except OSError:
      return None
    if not piece:
      return None
    self.heard = time.monotonic()
    *lines, self._text = (self._text + piece).split(b'\n')
    return [json.loads(line) for line in lines]


def listen(port: int = 0) -> tuple[socket.socket, list[str], int]:
  """Opens a port.

  Args:
    port: its number; 0 for any that is free.

  Returns:
    The socket, and the addresses and the port where others may reach it.
  """
  both = socket.has_dualstack_ipv6()
  server = socket.create_server(
      ('', port), family=socket.AF_INET6 if both else socket.AF_INET,
      dualstack_ipv6=both)
  names = [socket.gethostname()]
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    with contextlib.suppress(OSError):
      probe.connect(('192.0.2.1', 9))  # sends nothing, but chooses a route
      names.append(probe.getsockname()[0])
  return server, [*names, '127.0.0.1'], server.getsockname()[1]


class Watchdog:
  """Watch over the other processes, until `close`."""

  def __init__(
      self, index: int, count: int, *, patience: float, secret: str,
      server: socket.socket | None = None, addresses: tuple[str, ...] = (),
      port: int = 0, end: Callable[[str, bool], Any] | None = None):
    """Connects all processes; all must call it.

    Args:
      index: number of this process.
      count: number of processes.
      patience: seconds without a beat after which a process counts as stopped.
      secret: text that tells this run's connections from others.
      server: socket of `listen`, in process 0.
      addresses: of the hub.
      port: of the hub.
      end: called with a sentence if a process is gone, and with whether it was
        lost; else it failed. Ends this one with exit code 1 by default.

    Raises:
      ConnectionError: the hub cannot be reached, or did not hear of all others.
    """
    self._index, self._patience = index, patience
    self._end = end or (lambda sentence, lost: end_now(sentence))
    self._closing, self._over = False, False
    self._peers: list[_Peer] = []
    if server:
      self._accept(server, count - 1, secret)
    else:
      self._peers = [_connect(addresses, port, index, secret)]
    self._selector = selectors.DefaultSelector()
    for peer in self._peers:
      self._selector.register(peer.connection, selectors.EVENT_READ, peer)
    self._thread = threading.Thread(
        target=self._watch, name='watchdog', daemon=True)
    self._thread.start()

  def _accept(self, server: socket.socket, count: int, secret: str) -> None:
    """Waits for the connections of all other processes."""
    last = time.monotonic() + max(self._patience, 2 * _CONNECT)
    missing = {*range(1, count + 1)}
    with server:
      while missing:
        server.settimeout(max(last - time.monotonic(), 0.01))
        try:
          connection, _ = server.accept()
        except TimeoutError:
          some = ', '.join(map(str, sorted(missing)))
          raise ConnectionError(
              f'Process {some} did not reach process 0 on port '
              f'{server.getsockname()[1]}: it was killed, or a firewall stops '
              'connections between the hosts.') from None
        peer = _Peer(connection, -1)
        if peer.greeted(secret) and peer.index in missing:
          peer.send(secret=secret)
          missing.remove(peer.index)
          self._peers.append(peer)
        else:
          connection.close()

  def fail(self, sentence: str) -> None:
    """Tells the other processes that this one ends, and why."""
    self._closing = True
    for peer in self._peers:
      peer.send(ended=self._index, sentence=sentence, lost=False)

  def close(self) -> None:
    """Says goodbye: the run is over in all processes."""
    self._closing = True
    for peer in self._peers:
      peer.send(bye=True)
    self._thread.join(2 * _BEAT)
    for peer in self._peers:
      peer.connection.close()

  def _watch(self) -> None:
    beat = looked = time.monotonic()
    while not self._over:
      ready = self._selector.select(_BEAT / 2)
      now = time.monotonic()
      if now - looked > 5 * _BEAT:  # This process itself was stopped.
        for peer in self._peers:
          peer.heard = now
      looked = now
      for key, _ in ready:
        self._hear(key.data)
      if now - beat >= _BEAT:
        beat = now
        for peer in self._peers:
          if not peer.left:
            peer.send(beat=True)
      for peer in self._peers:
        if not peer.left and now - peer.heard > self._patience:
          self._lost(peer.index, (
              f'Process {peer.index} has not answered for '
              f'{self._patience:g} s: it is stopped, the network is broken, or '
              'one call keeps it busy (raise processes.patience). The run '
              'ends; the same command goes on from the last checkpoint.'),
                     True)
      if self._closing and all(peer.left for peer in self._peers):
        return

  def _hear(self, peer: _Peer) -> None:
    messages = peer.read()
    if messages is None:
      self._selector.unregister(peer.connection)
      if not peer.left:
        peer.left = True
        self._lost(peer.index, (
            f'Process {peer.index} was killed or its host was lost. The run '
            'ends; the same command goes on from the last checkpoint.'),
                   True)
      return
    for message in messages:
      if 'ended' in message:
        peer.left = True
        self._lost(message['ended'], message['sentence'], message['lost'])
      peer.left |= 'bye' in message

  def _lost(self, index: int, sentence: str, lost: bool) -> None:
    """Tells the others that a process is gone, and ends this one."""
    if self._closing:
      return
    for peer in self._peers:
      if peer.index != index and not peer.left:
        peer.send(ended=index, sentence=sentence, lost=lost)
    self._over = True
    self._end(sentence, lost)


def _connect(addresses, port: int, index: int, secret: str) -> _Peer:
  """Connects to the hub."""
  failures = []
  for address in addresses:
    try:
      peer = _Peer(
          socket.create_connection((address, port), timeout=_CONNECT), 0)
    except OSError as error:
      failures.append(f'{address}: {error}')
      continue
    peer.send(index=index, secret=secret)
    if peer.greeted(secret):
      return peer
    failures.append(f'{address}: another program answers there')
    peer.connection.close()
  raise ConnectionError(
      f'Process {index} cannot reach process 0 on port {port} '
      f'({"; ".join(failures)}): let the firewall pass connections between the '
      'hosts.')


def end_now(sentence: str, code: int = 1) -> None:
  """Ends the process at once, whatever it is doing."""
  plain.say_now(sentence)
  os._exit(code)


def leave(code: int) -> None:
  """Flushes the output and ends the process, without waiting for others."""
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      stream.flush()
  os._exit(code)
