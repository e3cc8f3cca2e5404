"""Headless Chromium, driven by chromedriver over HTTP; no package is needed.

Debian and Ubuntu have both: apt install chromium chromium-driver.
"""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest


class Page:
  """A page that is open in the browser."""

  def __init__(self, session):
    self._session = session

  def _call(self, path, **body):
    request = urllib.request.Request(
        self._session + path, json.dumps(body).encode(),
        {'Content-Type': 'application/json'})
    try:
      with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)['value']
    except urllib.error.HTTPError as error:
      raise AssertionError(error.read().decode()[:500]) from None

  def open(self, path):
    """Opens a file, and waits until its script says that it is ready."""
    self._call('/url', url='about:blank')
    self._call('/url', url=path.as_uri())
    return self.wait('document.documentElement.dataset.ready')

  def run(self, code):
    """Returns the value of an expression of JavaScript."""
    return self._call('/execute/sync', script=f'return {code}', args=[])

  def wait(self, code, seconds=60):
    """Returns the value of an expression once it is true."""
    end = time.monotonic() + seconds
    while not (value := self.run(code)):
      assert time.monotonic() < end, (code, self.errors())
      time.sleep(.02)
    return value

  def keys(self, text):
    """Presses keys, one after the other."""
    self._call('/actions', actions=[dict(
        type='key', id='keyboard', actions=[
            dict(type=f'key{way}', value=c)
            for c in text for way in ('Down', 'Up')])])

  def click(self, selector):
    """Clicks on the first element of a CSS selector."""
    found = self._call('/element', using='css selector', value=selector)
    self._call(f'/element/{[*found.values()][0]}/click')

  def choose(self, selector, value):
    """Sets a field as a user does."""
    self.run(f'''((node) => {{
        node.value = {json.dumps(value)};
        node.dispatchEvent(new Event('input', {{bubbles: true}}));
        node.dispatchEvent(new Event('change', {{bubbles: true}}));
        }})(document.querySelector({json.dumps(selector)}))''')

  def errors(self):
    """Returns what the page has logged as errors."""
    return [entry['message'] for entry in self._call(
        '/se/log', type='browser') if entry['level'] == 'SEVERE']

  @contextlib.contextmanager
  def phone(self, width=390, height=844):
    """Has a window of a phone's size, in pixels; headless windows are wider."""
    set_size = lambda name, **more: self._call(
        '/goog/cdp/execute', cmd=f'Emulation.{name}DeviceMetricsOverride',
        params=more)
    set_size('set', width=width, height=height, deviceScaleFactor=1,
             mobile=True)
    yield
    set_size('clear')

  def picture(self, path):
    """Writes a picture of the window."""
    with urllib.request.urlopen(
        self._session + '/screenshot', timeout=120) as answer:
      path.write_bytes(base64.b64decode(json.load(answer)['value']))


@contextlib.contextmanager
def browser(width=1280, height=800, dark=False):
  """Starts the browser; skips the test without one.

  Args:
    width, height: pixels of the window.
    dark: prefer dark pages.

  Yields:
    A `Page`.
  """
  programs = [shutil.which(name) for name in ('chromium', 'chromedriver')]
  if not all(programs):
    pytest.skip('chromium and chromedriver are needed: '
                'apt install chromium chromium-driver')
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  driver = subprocess.Popen(
      [programs[1], f'--port={port}'], stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL)
  try:
    yield Page(_session(f'http://127.0.0.1:{port}', programs[0], [
        '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
        '--disable-dev-shm-usage', f'--window-size={width},{height}',
        *['--blink-settings=preferredColorScheme=0'] * dark]))
  finally:
    with contextlib.suppress(OSError):
      urllib.request.urlopen(f'http://127.0.0.1:{port}/shutdown', timeout=20)
    driver.terminate()
    driver.wait()


def _session(address, program, flags):
  """Returns the address of a new session; waits until the driver answers."""
  body = json.dumps({'capabilities': {'alwaysMatch': {
      'browserName': 'chrome', 'goog:loggingPrefs': {'browser': 'ALL'},
      'goog:chromeOptions': {'binary': program, 'args': flags}}}}).encode()
  for _ in range(100):
    try:
      with urllib.request.urlopen(urllib.request.Request(
          address + '/session', body,
          {'Content-Type': 'application/json'}), timeout=120) as answer:
        return f'{address}/session/{json.load(answer)["value"]["sessionId"]}'
    except urllib.error.HTTPError as error:
      raise AssertionError(error.read().decode()[:500]) from None
    except OSError:
      time.sleep(.1)
  raise AssertionError('chromedriver does not answer')
