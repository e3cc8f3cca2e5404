r"""Tests of units: those of science, with prefixes, and what is no unit."""

import pytest

from jaxrl_llm import answers


def judged(reference, found):
  return answers.compare(reference, found)['kind'] == 'correct'


@pytest.mark.parametrize('unit', [
    r'\text{\AA}', 'Å', r'\mu\text{m}', r'\text{μm}', ' μm', r'\mathrm{\mu F}',
    r'\text{ um}', r'\text{ AU}', ' AU', r'\text{ pc}', r'\text{ Mpc}',
    r'\text{ ly}', r'\text{ light-years}', r'\text{ keV}', ' GeV',
    r'\text{ MeV}/c^2', r'\text{ mJ}', r'\text{ erg}', r'\,L_\odot',
    r'\,M_{\odot}', r'\,\mathrm{M}_\odot', r'\text{ mol/L}', r'\,\text{M}',
    r'\text{ g/cm}^3', r'\ \mathrm{kg\ m^{-3}}', r'\ \frac{\text{m}}{\text{s}}',
    r'\,\frac{1}{\text{s}}', r'\,\frac{\mathrm{m}}{\mathrm{s}^{2}}',
    r'\ \mathrm{m\,s^{-2}}', r'\text{ GHz}', r'\text{ GPa}', r'\text{ torr}',
    r'\ \Omega', r'\text{ k}\Omega', r'\,\mathrm{M\Omega}',
    r'\,\Omega\,\text{m}', r'\text{ nF}', r'\text{ T}', r'\text{ G}',
    r'\text{ N}\cdot\text{m}', r'\text{ dB}', r'\text{ rad/s}', r'^\circ C',
    r'{}^\circ\text{C}', r'\text{ Gyr}', r'\text{ atoms/cm}^3',
    r'\text{ J/(mol}\cdot\text{K)}', r'\text{ W/m}^2', r'\text{ cm}^{-1}',
    r'\text{ amu}', r'\text{ kDa}', r'\text{ km/s/Mpc}', r'\text{ kWh}'])
def test_a_unit_of_science_may_be_missing(unit):
  assert judged('5', '5' + unit) and not judged('6', '5' + unit)
  assert judged('5' + unit, '5') and not judged('5' + unit, '5' + unit + '+1')


@pytest.mark.parametrize('a, b', [
    (r'\text{ MHz}', r'\text{ mhz}'), (r'\text{ GeV}', r'\text{ gev}'),
    (r'\text{ kJ}', r'\text{ kj}'), (r'\text{ GHz}', r'\text{ gigahertz}'),
    (r'\,\mu\text{F}', r'\text{ microfarads}'), (r'\,\mu\text{m}', r'\mu m'),
    (r'\text{ k}\Omega', r'\text{ kiloohms}'), (r'\text{ M}', r'\text{ mol/L}'),
    (r'\,M_\odot', 'M_{\\odot}'), (r'\text{ Da}', r'\text{ amu}'),
    (r'^\circ\text{C}', r'\text{ degrees Celsius}'),
    (r'\text{ atoms/cm}^3', r'\text{ cm}^{-3}'),
    (r'\text{ J/(mol K)}', r'\ \mathrm{J\,mol^{-1}\,K^{-1}}'),
    (r'\text{ J/(mol K)}', r'\,\frac{\text{J}}{\text{mol}\cdot\text{K}}'),
    (r'\text{ m/s}', r'\text{ meters per second}'),
    (r'\text{ N}\cdot\text{m}', r'\text{ Nm}'),
    (r'\text{ kWh}', r'\text{ kilowatt-hours}'),
    (r'\text{ eV}', r'\text{ electron volts}'), (r'\text{ m}', 'm')])
def test_spellings_of_a_unit_are_equal(a, b):
  assert judged('5' + a, '5' + b) and judged('5' + b, '5' + a)


@pytest.mark.parametrize('a, b', [
    ('MPa', 'mPa'), ('MPa', 'mpa'), ('MW', 'mW'), ('pF', 'PF'), ('nm', 'Nm'),
    ('J', 'Js'), ('V', 'Vs'), ('kpc', 'Mpc'), ('T', 'G'), ('g', 'G'),
    ('h', 'H'), ('s', 'S'), ('m/s', 's/m'), ('m/s', 'm/s^2'), ('W', 'Wh'),
    ('cm^{-1}', 'cm'), ('atoms/cm^3', 'atoms/m^3'), ('amu', 'AU'), ('m', 'cm'),
    ('J/(mol K)', '(J/mol) K'), ('kg/(m/s)', 'kg/m/s'), ('mol', 'M'),
    ('MeV', 'MeV/c^2'), ('C', 'F'), ('us', 'ms'), ('dB', 'dm'),
    ('camps', 'cA'), ('J/mol', 'kJ/mol'), ('Mm', 'mm')])
def test_other_units_differ(a, b):
  assert not judged(rf'5\text{{ {a}}}', rf'5\text{{ {b}}}')
  assert not judged(rf'5\text{{ {b}}}', rf'5\text{{ {a}}}')


@pytest.mark.parametrize('reference, found', [
    ('5', '5m'), ('5', '5M'), ('5', r'5\mu m'), ('5', r'5\mu'), ('5', '5kT'),
    ('5', r'5k\Omega'), ('r', r'r\Omega'), ('2', r'2r\Omega'),
    ('x', r'xM_\odot'), ('2M', r'2M_\odot'), ('12', r'12\text{M}'),
    ('5', r'5\text{k}'), ('5', '5()'),
    ('5', r'5\frac{m}{s}'), ('5', r'5\text{ per}'), ('3', r'1+2\Omega'),
    (r'5\,M_\odot', r'5\,L_\odot'), (r'5\,\Omega', r'5\text{ k}\Omega'),
    ('5', r'5\,\frac{\text{m}}{2}')])
def test_what_may_be_a_variable_or_a_scale_is_no_unit(reference, found):
  assert not judged(reference, found)


def test_a_product_of_capitals_is_no_hour():
  assert judged(r'\pi R^2H', r'\pi HR^2') and not judged(r'\pi', r'\pi HR')


def test_an_omega_in_an_expression_is_a_variable():
  assert judged(r'2\Omega+1', r'1+2\Omega') and judged(r'r\Omega', r'\Omega r')
