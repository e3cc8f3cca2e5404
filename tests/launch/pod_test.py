"""Tests of what befalls the VM of tpu_pod.py: preempted, hanging, gone."""

import pytest

from tests.helpers.gcloud import calls, CREATE, install, RUN, run


@pytest.fixture(name='gcloud')
def _gcloud(tmp_path):
  install(tmp_path)
  return tmp_path


def test_a_preempted_vm_is_made_again(gcloud):
  code, text = run(gcloud, rules=[
      dict(when=RUN, code=255, state='PREEMPTED'),
      dict(when=RUN, code=1, state='TERMINATED')])
  assert code == 0, text
  again = ['describe', 'delete', 'describe', 'create', 'describe', 'copy',
           'setup', 'run']
  assert calls(gcloud)[0] == [
      'describe', 'create', 'describe', 'copy', 'setup', 'run', *again, *again,
      'delete']
  assert 'job: preempted; making it again' in text


def test_a_vm_preempted_before_the_program_runs_is_made_again(gcloud):
  code, text = run(gcloud, rules=[
      dict(when='scp', code=1, state='PREEMPTED'),
      dict(when='uv venv', code=1, state='TERMINATED')])
  assert code == 0, text
  again = ['describe', 'delete', 'describe', 'create', 'describe', 'copy']
  assert calls(gcloud)[0] == [
      'describe', 'create', 'describe', 'copy', *again, 'setup', *again,
      'setup', 'run', 'delete']
  assert text.count('making it again') == 2


def test_a_preemption_that_ssh_does_not_notice(gcloud):
  code, text = run(gcloud, '--poll=.2', rules=[
      dict(when=RUN, sleep=300, state='PREEMPTED')])
  assert code == 0, text
  assert calls(gcloud)[0].count('run') == 2
  assert 'job: preempted; making it again' in text


@pytest.mark.parametrize('state, made', [('READY', 1), ('PREEMPTED', 2)])
def test_a_program_that_was_asked_to_stop_runs_again(gcloud, state, made):
  """Its exit code is 0; what follows it says that the run is not done."""
  code, text = run(gcloud, rules=[
      dict(when=RUN, code=75, state=state)])
  assert code == 0, text
  names = calls(gcloud)[0]
  assert names.count('run') == 2 and names.count('create') == made


@pytest.mark.parametrize('said, state, made', [
    ('Process 1 was killed. The same command goes on from the last checkpoint.',
     'PREEMPTED', 2),
    ('Retrying: SSH command error: [ssh] exited with return code [255].',
     'READY', 1)])
def test_a_program_that_lost_a_worker_runs_again(gcloud, said, state, made):
  """Its VM may show what has happened some seconds later."""
  code, text = run(gcloud, '--poll=.5', rules=[
      dict(when=RUN, code=1, say=said),
      dict(when='describe', code=1, say='NOT_FOUND'),
      dict(when='describe', say='READY'),
      dict(when='describe', say='READY', state=state)])
  assert code == 0, text
  names = calls(gcloud)[0]
  assert names.count('run') == 2 and names.count('create') == made, names


def test_a_vm_that_is_being_deleted_is_waited_for(gcloud):
  code, text = run(gcloud, rules=[
      dict(when='describe', say='DELETING')] * 2)
  assert code == 0, text
  assert calls(gcloud)[0][:4] == ['describe'] * 3 + ['create']


def test_a_lost_connection_runs_again_without_a_new_vm(gcloud):
  code, _ = run(gcloud, rules=[dict(when=RUN, code=255)])
  assert code == 0
  assert calls(gcloud)[0][5:] == ['run', 'describe', 'stop', 'run', 'delete']


def test_a_program_that_fails_is_not_run_again(gcloud):
  code, text = run(gcloud, rules=[
      dict(when=RUN, code=3, say='No prompt fits.')])
  assert code == 3 and 'No prompt fits.' in text
  assert calls(gcloud)[0][-3:] == ['run', 'describe', 'delete']


def test_no_capacity_is_tried_again_and_in_the_end_said(gcloud):
  full = dict(when=CREATE, code=1, say='ERROR: no more capacity in the zone')
  code, text = run(gcloud, rules=[full] * 2)
  assert code == 0 and text.count('no more capacity') == 2
  code, text = run(gcloud, '--tries=3', rules=[full] * 9)
  assert code == 1 and 'create of job failed: ERROR: no more capacity' in text
  # The failed command may have made it: it is deleted.
  assert calls(gcloud)[0][-4:] == ['create', 'create', 'create', 'delete']
  assert 'still exists' not in text


def test_what_will_not_go_away_is_not_tried_again(gcloud):
  code, text = run(gcloud, rules=[
      dict(when=CREATE, code=1, say='PERMISSION_DENIED: billing is off')])
  assert code == 1 and 'PERMISSION_DENIED: billing is off' in text
  assert calls(gcloud)[0].count('create') == 1


def test_a_vm_that_cannot_be_deleted_is_said(gcloud):
  bad = dict(when='tpu-vm delete', code=1, say='quota of deletes')
  code, text = run(gcloud, '--tries=2', rules=[bad] * 9)
  assert code != 0
  *_, last = text.strip().splitlines()
  assert last == (
      'The TPU VM job in here still exists and costs money. Delete it with: '
      'gcloud compute tpus tpu-vm delete job --zone=here --quiet')
  code, text = run(gcloud, '--keep')
  assert code == 0 and 'still exists and costs money' in text


def test_queued_resources(gcloud):
  code, text = run(gcloud, '--queued', '--reserved', rules=[
      dict(when='queued-resources create', state='CREATING'),
      dict(when='queued-resources describe', say='WAITING_FOR_RESOURCES'),
      dict(when='queued-resources describe', say='ACTIVE', state='READY')])
  assert code == 0, text
  _, words = calls(gcloud)
  assert words[1] == [
      'compute', 'tpus', 'queued-resources', 'create', 'job', '--node-id=job',
      '--accelerator-type=v5litepod-16',
      '--runtime-version=v2-alpha-tpuv5-lite', '--reserved', '--zone=here',
      '--quiet']
  assert words[-2][2:5] == ['queued-resources', 'delete', 'job']
  assert '--force' in words[-2] and 'describe' in words[-1]  # is it gone?


def test_a_queued_request_that_is_suspended_is_made_again(gcloud):
  code, text = run(gcloud, '--queued', '--spot', rules=[
      dict(when='queued-resources create', state=''),
      dict(when='queued-resources describe', say='SUSPENDED'),
      dict(when='queued-resources delete'),
      dict(when='tpu-vm describe', say=''),
      dict(when='tpu-vm describe', say='')])
  assert code == 0, text
  assert calls(gcloud)[0].count('create') == 2
  assert 'job: suspended; making it again' in text


@pytest.mark.parametrize('state', ['FAILED', 'SUSPENDED'])
def test_a_request_of_an_earlier_launch_that_has_ended_is_made_again(
    gcloud, state):
  code, text = run(gcloud, '--queued', '--spot', rules=[
      dict(when='queued-resources create', code=1, say='ALREADY_EXISTS: job'),
      dict(when='queued-resources describe', say=state)])
  assert code == 0, text
  assert f'job: {state.lower()}; making it again' in text
  commands = [' '.join(words[2:4]) for words in calls(gcloud)[1]]
  assert commands[:6] == [
      'tpu-vm describe', 'queued-resources create', 'tpu-vm describe',
      'queued-resources describe', 'queued-resources delete', 'tpu-vm describe']
  assert commands.count('queued-resources create') == 2
  assert 'RL 1/4' in text and 'still exists' not in text


def test_a_request_of_this_launch_that_fails_is_said(gcloud):
  code, text = run(gcloud, '--queued', rules=[
      dict(when='queued-resources create', code=1, say='ALREADY_EXISTS: job'),
      dict(when='queued-resources describe', say='FAILED'),
      dict(when='queued-resources create'),
      dict(when='queued-resources describe', say='FAILED')])
  assert code == 1
  assert 'The request for v5litepod-16 has failed: try another zone' in text
  assert calls(gcloud)[0].count('create') == 2
  assert calls(gcloud)[1][-2][2:4] == ['queued-resources', 'delete']


def test_a_vm_without_its_request_is_deleted_too(gcloud):
  """It was made without --queued."""
  (gcloud / 'state').write_text('READY')
  code, text = run(gcloud, '--queued', rules=[
      dict(when='queued-resources delete', code=1, say='NOT_FOUND: none')])
  assert code == 0 and 'job: deleted' in text
  assert not (gcloud / 'state').exists()


def test_a_state_among_other_words(gcloud):
  code, text = run(gcloud, rules=[
      dict(when='describe', code=1, say='NOT_FOUND'),
      dict(when='describe', say='creating'),
      dict(when='describe', say='ready\n\nTo take a survey, run gcloud.')])
  assert code == 0, text
  assert text.splitlines()[:3] == [
      'job: created', 'job: creating', 'job: ready']
