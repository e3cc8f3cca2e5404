"""Tests of the watchdog: each way in which a process can be gone."""

import queue
import socket
import threading
import time

import pytest

from jaxrl_llm.sharding import watchdog

SECONDS = 20  # that a sentence may take on a busy machine


def met(count, patience=2.0):
  """Returns the watchdogs of some processes, and the queues of their ends."""
  server, _, port = watchdog.listen()
  ends, dogs = [queue.Queue() for _ in range(count)], [None] * count

  def join(index):
    dogs[index] = watchdog.Watchdog(
        index, count, patience=patience, secret='x', port=port,
        server=None if index else server, addresses=('127.0.0.1',),
        end=lambda *said: ends[index].put(said))

  threads = [threading.Thread(target=join, args=[i]) for i in range(count)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert all(dogs)
  return dogs, ends


def kill(dog):
  """Closes the connections of a process, as the system does."""
  dog._closing = dog._over = True
  dog._thread.join()
  for peer in dog._peers:
    peer.connection.shutdown(socket.SHUT_RDWR)
    peer.connection.close()


@pytest.mark.parametrize('gone', [0, 1, 2])
def test_a_killed_process_ends_the_others(gone):
  dogs, ends = met(3)
  time.sleep(2.5)  # beats count as life
  assert all(end.empty() for end in ends)
  kill(dogs[gone])
  for index in {0, 1, 2} - {gone}:
    sentence, lost = ends[index].get(timeout=SECONDS)
    assert sentence.startswith(f'Process {gone} was killed') and lost


@pytest.mark.parametrize('gone', [0, 1])
def test_a_stopped_process_ends_the_others(gone):
  dogs, ends = met(3)
  dogs[gone]._over = True  # its thread ends, its connections stay
  others = {0, 1, 2} - {gone}
  for index in others:
    sentence, lost = ends[index].get(timeout=SECONDS)
    assert sentence.startswith(f'Process {gone} has not answered for 2 s')
    assert lost


def test_the_sentence_of_a_failure_is_passed_on():
  dogs, ends = met(3)
  dogs[2].fail('Process 2 ended: no room.')
  for index in (0, 1):
    assert ends[index].get(timeout=SECONDS) == (
        'Process 2 ended: no room.', False)
  assert ends[2].empty()


def test_a_goodbye_is_no_death():
  dogs, ends = met(3)
  threads = [threading.Thread(target=dog.close) for dog in dogs]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  time.sleep(2.5)
  assert all(end.empty() for end in ends)


def test_another_program_on_the_port_is_not_a_process():
  server, _, port = watchdog.listen()
  found = []
  thread = threading.Thread(target=lambda: found.append(watchdog.Watchdog(
      0, 2, patience=9, secret='x', server=server,
      end=lambda *said: found.append(said))))
  thread.start()
  with socket.create_connection(('127.0.0.1', port)) as stranger:
    stranger.sendall(b'{"index": 1, "secret": "y"}\n')
    dog = watchdog.Watchdog(
        1, 2, patience=9, secret='x', addresses=('127.0.0.1',), port=port,
        end=lambda *said: found.append(said))
  thread.join()
  for one in (dog, found[0]):
    kill(one)
  assert len(found[0]._peers) == 1


def test_a_hub_that_is_not_there_is_one_sentence():
  with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
  with pytest.raises(
      ConnectionError, match=f'cannot reach process 0 on port {port} .*hosts'):
    watchdog.Watchdog(
        1, 2, patience=2, secret='x', addresses=('127.0.0.1',), port=port)


def test_strangers_are_sent_away():
  """A scan of ports, in pieces or closed at once, ends nothing."""
  server, _, port = watchdog.listen()
  for text in (b'GET / HTTP/1.0\r\n\r\n', b'[1]\n', b'{"index": 1}\n', b''):
    with socket.create_connection(('127.0.0.1', port)) as stranger:
      stranger.sendall(text)
  ends, dogs = queue.Queue(), []
  hub = threading.Thread(target=lambda: dogs.append(watchdog.Watchdog(
      0, 2, patience=20, secret='x', server=server,
      end=lambda *said: ends.put(said))))
  hub.start()
  dogs.append(watchdog.Watchdog(
      1, 2, patience=20, secret='x', addresses=('127.0.0.1',), port=port,
      end=lambda *said: ends.put(said)))
  hub.join(SECONDS)
  assert len(dogs) == 2
  for dog in dogs:
    dog.close()
  assert ends.empty()


def test_a_process_that_does_not_come_is_named(monkeypatch):
  monkeypatch.setattr(watchdog, '_CONNECT', .1)
  server, _, port = watchdog.listen()
  with pytest.raises(ConnectionError, match=(
      f'Process 1, 2 did not reach process 0 on port {port}: it was killed')):
    watchdog.Watchdog(0, 3, patience=.2, secret='x', server=server)
