"""Responses carried over between steps, on a real language model.

  python -m benchmarks.claims.carry_real --write

Trains configs/real/smollm2.py, SmolLM2-135M-Instruct on arithmetic, with
`sampling.carry_over` and without, see `benchmarks.claims.carry`. The learning
rate is that of the config, held constant.
"""

from benchmarks.claims import carry, runs

CONFIG = 'configs/real/smollm2.py'
ARMS = {name: arm._replace(rate='') for name, arm in carry.arms(
    100, 160, 40, **{'optimizer.schedule': 'constant', 'eval.every': 20,
                     'checkpoint.every': 20}).items()}
CLAIM = carry.claim(
    'carry_real', __doc__, 'Responses of SmolLM2 carried over', CONFIG, ARMS,
    range(10, 13), carry.Setting(100, ('pass@1',), f'''\
{CONFIG}: SmolLM2-135M-Instruct on arithmetic in words. Responses have \
{{length}} tokens on average, the longest of a step {{longest}}, and the limit \
is 40. A step has 128 responses on 32 decode slots. Carried over, a step ends \
after 40 decode steps. pass@1 is measured on 512 held-out problems. Runs \
shared the machine with other work, which their seconds measure too.'''))
CLAIM = CLAIM._replace(older='''\
The settings were not frozen before the runs that count. The arm that carries \
over had 133 steps at first. Seed 10 had made 92 updates after them, so it was \
given 160, and the settings were committed then, when both arms of seed 11 had \
begun. The learning rate is constant, so that the steps before are the same.''')

if __name__ == '__main__':
  runs.program(CLAIM)
