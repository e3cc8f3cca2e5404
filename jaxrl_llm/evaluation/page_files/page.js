// What runs have written reaches the page by textContent alone.
const $ = (id) => document.getElementById(id);
const FIRST = ['sft/loss', 'sft/heldout_loss', 'reward/mean', 'eval/pass@1',
  'eval/greedy',
  'response/length', 'response/truncated', 'update/entropy',
  'reward/no_signal', 'update/kl_old', 'update/grad_norm', 'seconds/step',
  'eval/mean', 'response/entropy'];
const ROW = 46;  // pixels of a row of the list, as in the style
let data, samples, runs, groups = [], shown = [], current = -1, matches;
const view = {
  tab: 'run', off: new Set(), metrics: new Set(), smooth: 0.6, log: false,
  axis: 'step', zoom: null, hover: null, colour: 'none', together: true,
  when: 'final', sort: null, sign: 1};

function make(kind, content = '', more = {}) {
  const node = document.createElement(kind);
  for (const [name, value] of Object.entries(more)) {
    if (name in node) node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...[content].flat());
  return node;
}

const number = (x, digits = 4) => x == null ? '–' : Math.abs(x) >= 1e5 ||
  (x && Math.abs(x) < 1e-3) ? x.toExponential(2) :
  String(+x.toPrecision(digits));
const dot = (run) => make('span', '', {
  className: 'dot', style: `background:${colour(run)}`});
const many = (n, word) => `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`;

async function load() {
  const text = atob($('data').textContent);
  $('data').remove();
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(
    new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// ---- the run: figures, flags, settings

function drawFigures() {
  const {figures, metrics, done, path} = runs[0];
  const box = $('figures');
  const table = make('table', make('tr', ['', 'before', 'after', 'change']
    .map((text) => make('th', text))));
  for (const [name, {start, final}] of Object.entries(figures)) {
    const change = isNumber(start) && isNumber(final) ? final - start : null;
    table.append(make('tr', [
      make('td', name), make('td', fixed(start)), make('td', fixed(final)),
      make('td', (change > 0 ? '+' : '') + fixed(change), {
        className: !change ? '' : (change > 0) === /loss|perplexity/.test(name) ?
          'bad' : 'good'})]));
  }
  box.append(table.rows.length > 1 ? table : make('p',
    'The run has not ended with held-out estimates.', {className: 'soft'}));
  const said = done.steps == null ?
    `at step ${(metrics.step || []).at(-1) ?? 0}, not done` :
    `${many(done.steps, 'step')}, ${number(done.seconds / 60, 3)} minutes`;
  box.append(make('div', `${path}: ${said}`, {className: 'soft'}));
}

function drawFlags() {
  const box = $('flags');
  const head = (at, text) => make('b', runs.length > 1 ?
    [dot(at), `${runs[at].name}: ${text}`] : text);
  box.replaceChildren();
  runs.forEach((run, at) => run.flags.forEach((flag, i) => {
    const node = make('div', [head(at, flag.name), flag.text],
      {className: 'flag'});
    if (flag.samples.length) {
      node.append(make('button', many(flag.samples.length, 'sample'), {
        onclick: () => {
          $('filters').reset();
          $('f-flag').value = `${at}:${i}`;
          filter();
          open('samples');
        }}));
    }
    box.append(node);
  }));
  runs.forEach((run, at) => run.warnings.forEach(({step, text}) => box.append(
    make('div', [head(at, `warning of step ${step}`), text],
      {className: 'flag'}))));
  if (!box.children.length) {
    box.append(make('p', 'None. Looked for: repeated responses, odd text with ' +
      'a high reward, rewards without the reference, length drift, rising ' +
      'truncation, entropy collapse, held-out estimates that fall.',
    {className: 'soft'}));
  }
}

function drawSettings() {
  const names = Object.keys(runs[0].config).filter(
    (name) => !differs(name)).sort();
  $('settings').hidden = !names.length;
  $('settings').firstElementChild.textContent =
    runs.length > 1 ? 'Settings of all' : 'Settings';
  $('settings').lastElementChild.replaceChildren(make('table', names.map(
    (name) => make('tr', [make('td', name), make(
      'td', json(0, name), {className: 'text'})]))));
}

function drawRuns() {
  $('runs').replaceChildren(...sets.map(({members, name}) => make('button', [
    dot(members[0]), name], {
    title: [name, ...members.map((at) => runs[at].path)].join('\n'),
    'aria-pressed': String(members.some((at) => !view.off.has(at))),
    onclick: (event) => {
      const on = members.every((at) => view.off.has(at));
      members.forEach((at) => on ? view.off.delete(at) : view.off.add(at));
      event.currentTarget.setAttribute('aria-pressed', String(on));
      drawRun();
      filter();
    }})));
}

// Draws what depends on the sets and on which estimates are chosen.
function drawSets() {
  makeSets();
  drawFlags();
  if (runs.length < 2) return;
  drawRuns();
  drawTable();
  drawPlotFields();
}

// ---- curves

function xs(run) {
  const {step} = run.metrics;
  const name = {hours: 'seconds/step', responses: 'response/count'}[view.axis];
  if (!name) return step;
  let total = 0;
  const scale = view.axis === 'hours' ? 3600 : 1;
  return step.map((_, i) => total += ((run.metrics[name] || [])[i] || 0) / scale);
}

function smoothed(ys) {
  let mean = 0, weight = 0;
  return ys.map((y) => {
    mean = view.smooth * mean + (1 - view.smooth) * y;
    weight = view.smooth * weight + (1 - view.smooth);
    return mean / weight;
  });
}

function curveOf(metric, at) {
  const ys = runs[at].metrics[metric];
  if (!ys || view.off.has(at)) return [];
  const x = xs(runs[at]);
  const keep = [...ys.keys()].filter((i) => ys[i] != null &&
    !(view.log && ys[i] <= 0));
  if (!keep.length) return [];
  const dense = 2 * keep.length >= ys.length;
  const raw = keep.map((i) => ys[i]);
  return [{at, dense, steps: keep.map((i) => runs[at].metrics.step[i]),
    x: keep.map((i) => x[i]), raw, y: dense ? smoothed(raw) : raw}];
}

// Returns the curve of each run, and the means of sets over common steps.
function curvesOf(metric) {
  const found = sets.map(({members}) => members.flatMap(
    (at) => curveOf(metric, at)));
  return [
    ...found.filter((of) => of.length > 1).flat().map(
      (curve) => ({...curve, thin: true})),
    ...found.flatMap((of) => of.length > 1 ? meanCurve(of) : of)];
}

function meanCurve(curves) {
  const places = curves.map(({steps}) => new Map(steps.map((s, i) => [s, i])));
  const steps = curves[0].steps.filter(
    (step) => places.every((of) => of.has(step)));
  const mean = (name) => steps.map((step) => average(curves.map(
    (curve, c) => curve[name][places[c].get(step)])));
  return steps.length ? [{at: curves[0].at, count: curves.length,
    dense: curves.every(({dense}) => dense), x: mean('x'), raw: mean('raw'),
    y: mean('y')}] : [];
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) {
    found.push(Math.abs(t) < step / 1e6 ? 0 : t);
  }
  return found;
}

function drawCurves() {
  const grid = $('curves');
  const wanted = [...view.metrics];
  const known = new Map([...grid.children].map((n) => [n.dataset.metric, n]));
  grid.replaceChildren(...wanted.map((metric) => known.get(metric) ||
    newCurve(metric)));
  $('zoom').hidden = !view.zoom;
  view.curves = new Map();
  [...grid.children].forEach(drawCurve);
}

function newCurve(metric) {
  const canvas = make('canvas', '', {role: 'img', 'aria-label': metric});
  const node = make('figure', [make('figcaption', [
    make('b', metric), make('span')]), canvas]);
  node.dataset.metric = metric;
  const at = (event) => {
    const {left} = canvas.getBoundingClientRect();
    return node.place && node.place(event.clientX - left);
  };
  canvas.onpointerdown = (event) => node.from = at(event);
  canvas.onpointermove = (event) => {
    view.hover = at(event);
    [...$('curves').children].forEach(drawCurve);
  };
  canvas.onpointerleave = () => {
    view.hover = null;
    [...$('curves').children].forEach(drawCurve);
  };
  canvas.onpointerup = (event) => {
    const [low, high] = [node.from, at(event)].sort((a, b) => a - b);
    const [first, last] = node.range || [0, 0];
    if (high - low > 0.02 * (last - first)) {
      view.zoom = [low, high];
      drawCurves();
    }
  };
  return node;
}

function drawCurve(node) {
  const canvas = node.querySelector('canvas');
  const {metric} = node.dataset;
  if (!view.curves.has(metric)) view.curves.set(metric, curvesOf(metric));
  const curves = view.curves.get(metric);
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const soft = style.getPropertyValue('--soft');
  pen.font = '11px system-ui, sans-serif';
  const x = curves.flatMap((c) => c.x);
  if (!x.length) {
    pen.fillStyle = soft;
    pen.fillText('no values' + (view.log ? ' above 0' : ''), 8, 20);
    return;
  }
  const [x0, x1] = view.zoom || [least(x), Math.max(most(x), least(x) + 1e-9)];
  const inside = (c, ys) => ys.filter((_, i) => c.x[i] >= x0 && c.x[i] <= x1);
  const scale = view.log ? Math.log10 : (v) => v;
  // Outliers of raw values do not stretch the axis.
  const ys = curves.flatMap((c) => inside(c, c.y)).map(scale);
  const raw = Float64Array.from(
    curves.flatMap((c) => inside(c, c.raw)).map(scale)).sort();
  if (!ys.length) return;
  const last = raw.length - 1;
  let low = Math.min(least(ys), raw[Math.floor(0.02 * last)]);
  let high = Math.max(most(ys), raw[Math.ceil(0.98 * last)]);
  // Rounding makes a constant a range that ticks cannot divide.
  const flat = high - low <= 1e-9 * Math.abs(high);
  const pad = flat ? Math.abs(high) * 0.1 || 1 : (high - low) * 0.06;
  low -= pad;
  high += pad;
  const box = {left: 46, right: width - 14, top: 6, bottom: height - 20};
  const px = (v) => box.left + (v - x0) / (x1 - x0 || 1) * (box.right - box.left);
  const py = (v) => box.bottom - (scale(v) - low) / (high - low) *
    (box.bottom - box.top);
  node.range = [x0, x1];
  node.place = (p) => x0 + Math.min(1, Math.max(0, (p - box.left) /
    (box.right - box.left))) * (x1 - x0);
  pen.strokeStyle = style.getPropertyValue('--line');
  pen.fillStyle = soft;
  pen.textAlign = 'right';
  for (const t of ticks(low, high, 5)) {
    const y = box.bottom - (t - low) / (high - low) * (box.bottom - box.top);
    line(pen, [[box.left, y], [box.right, y]]);
    pen.fillText(number(view.log ? 10 ** t : t, 3), box.left - 5, y + 4);
  }
  pen.textAlign = 'center';
  for (const t of ticks(x0, x1, 5)) pen.fillText(number(t), px(t), height - 5);
  pen.save();
  pen.rect(box.left, 0, box.right - box.left, height - 16);
  pen.clip();
  for (const curve of curves) {
    pen.strokeStyle = pen.fillStyle = colour(curve.at);
    if (curve.dense && view.smooth && !curve.thin && !curve.count) {
      pen.globalAlpha = 0.25;
      pen.lineWidth = 1;
      line(pen, curve.x.map((v, i) => [px(v), py(curve.raw[i])]));
    }
    pen.globalAlpha = curve.thin ? 0.35 : 1;
    pen.lineWidth = curve.thin ? 1 : curve.count ? 2.2 : 1.7;
    line(pen, curve.x.map((v, i) => [px(v), py(curve.y[i])]));
    if (!curve.thin && !curve.dense || curve.x.length === 1) {
      curve.x.forEach((v, i) => {
        pen.beginPath();
        pen.arc(px(v), py(curve.y[i]), 2.5, 0, 7);
        pen.fill();
      });
    }
  }
  pen.restore();
  if (view.hover != null) {
    pen.strokeStyle = soft;
    pen.lineWidth = 1;
    line(pen, [[px(view.hover), box.top], [px(view.hover), box.bottom]]);
  }
  caption(node, curves);
}

function caption(node, curves) {
  const out = node.querySelector('span');
  const told = curves.filter(({thin}) => !thin);
  out.replaceChildren(...told.slice(0, 6).map((curve) => {
    let near = curve.x.length - 1;
    if (view.hover != null) {
      curve.x.forEach((v, i) => {
        if (Math.abs(v - view.hover) < Math.abs(curve.x[near] - view.hover)) {
          near = i;
        }
      });
    }
    return make('span', ` ${number(curve.raw[near], 3)}`, {
      style: runs.length > 1 ? `color:${colour(curve.at)}` : '',
      title: `${sets[setOf[curve.at]].name}${curve.count ?
        `, mean of ${curve.count}` : ''}, ${view.axis} ${number(curve.x[near])}`});
  }), told.length > 6 ? ' …' : '');
}

function line(pen, points) {
  pen.beginPath();
  points.forEach(([x, y], i) => i ? pen.lineTo(x, y) : pen.moveTo(x, y));
  pen.stroke();
}

// Math.min takes its arguments from the stack, which is small.
const least = (values) => values.reduce((a, b) => a < b ? a : b);
const most = (values) => values.reduce((a, b) => a > b ? a : b);

function drawPicker() {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))]
    .filter((name) => name !== 'step').sort();
  const moves = (name) => runs.some(({metrics}) => (metrics[name] || []).some(
    (x) => x != null && x !== 0));
  const own = names.filter((name) => /^(rewards|logged)\//.test(name));
  [...FIRST.filter(moves).slice(0, 9), ...own.slice(0, 9)].forEach(
    (name) => view.metrics.add(name));
  if (!view.metrics.size) names.slice(0, 9).forEach((n) => view.metrics.add(n));
  $('metrics').replaceChildren(...names.map((name) => make('label', [
    make('input', '', {
      type: 'checkbox', checked: view.metrics.has(name),
      onchange: (event) => {
        if (event.target.checked) view.metrics.add(name);
        else view.metrics.delete(name);
        drawCurves();
      }}), ` ${name}`])));
  $('metric-text').oninput = (event) => {
    for (const label of $('metrics').children) {
      label.hidden = !label.textContent.includes(event.target.value);
    }
  };
}

// ---- samples

function makeGroups() {
  groups = [];
  let key;
  for (let i = 0; i < samples.run.length; i++) {
    const next = [samples.run[i], samples.source[i], samples.of[i],
      samples.step[i], samples.group[i]].join();
    if (next !== key) groups.push([]);
    key = next;
    groups[groups.length - 1].push(i);
  }
}

function choices(id, values, label = (v) => v) {
  $(id).replaceChildren(make('option', 'all', {value: ''}), ...values.map(
    (value) => make('option', label(value), {value})));
  $(id).parentElement.hidden = values.length < 2 && id !== 'f-flag' ||
    !values.length;
}

function drawFilters() {
  for (const name of ['source', 'kind', 'verdict']) {
    const used = [...new Set(samples[name])].filter((i) => data.texts[i]);
    choices(`f-${name}`, used, (i) => data.texts[i]);
  }
  choices('f-run', [...runs.keys()], (i) => runs[i].name);
  choices('f-flag', runs.flatMap((run, at) => run.flags.flatMap(
    (flag, i) => flag.samples.length ? [`${at}:${i}`] : [])), (value) => {
    const [at, i] = value.split(':');
    return (runs.length > 1 ? `${runs[at].name}: ` : '') +
      runs[at].flags[i].name;
  });
}

function pattern() {
  const text = $('f-text').value;
  if (!text) return null;
  const regex = text.match(/^\/(.+)\/$/);
  try {
    const found = new RegExp(regex ? regex[1] :
      text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'i');
    $('f-text').setCustomValidity('');
    return found;
  } catch (error) {
    $('f-text').setCustomValidity(error.message);
    return null;
  }
}

const bound = (id, otherwise) => $(id).value === '' ? otherwise :
  Number($(id).value);

function matching() {
  const {run, step, reward, prompt, response} = samples;
  const found = pattern();
  const whole = ['run', 'source', 'kind', 'verdict'].filter(
    (name) => $(`f-${name}`).value !== '').map(
    (name) => [samples[name], Number($(`f-${name}`).value)]);
  const range = [['step', step], ['reward', reward]].map(([name, column]) => [
    column, bound(`f-${name}0`, -Infinity), bound(`f-${name}1`, Infinity)])
    .filter(([, low, high]) => low > -Infinity || high < Infinity);
  const [at, i] = $('f-flag').value.split(':');
  const flagged = i && new Set(runs[at].flags[i].samples);
  const inPrompt = found && data.texts.map((text) => found.test(text));
  const result = new Uint8Array(run.length);
  for (let s = 0; s < run.length; s++) {
    if (view.off.has(run[s]) || flagged && !flagged.has(s)) continue;
    if (whole.some(([column, value]) => column[s] !== value)) continue;
    if (range.some(([column, low, high]) => column[s] == null ||
      column[s] < low || column[s] > high)) continue;
    if (found && !inPrompt[prompt[s]] && !found.test(response[s])) continue;
    result[s] = 1;
  }
  return result;
}

function mean(group) {
  const known = group.map((s) => samples.reward[s]).filter((x) => x != null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : -1e9;
}

function filter() {
  const before = shown[current];
  matches = matching();
  shown = groups.filter((group) => group.some((s) => matches[s]));
  const order = $('f-order').value;
  const key = order.endsWith('reward') ? mean :
    (group) => samples.step[group[0]] ?? Infinity;
  const keys = new Map(shown.map((group) => [group, key(group)]));
  const sign = order.startsWith('-') ? -1 : 1;
  shown.sort((a, b) => sign * (keys.get(a) - keys.get(b)) || 0);
  const count = matches.reduce((a, b) => a + b, 0);
  $('count').textContent = `${count.toLocaleString('en')} of ${
    many(matches.length, 'response')}, ${many(shown.length, 'group')}` + left();
  $('tall').style.height = `${shown.length * ROW}px`;
  current = Math.max(0, shown.indexOf(before));
  choose(current);
}

function left() {
  const total = runs.reduce((sum, run) => sum + run.total, 0);
  return total > matches.length ? ` (${
    (total - matches.length).toLocaleString('en')} left out for their size)` : '';
}

function drawList() {
  const list = $('list');
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const last = Math.min(shown.length,
    Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(listRow(i));
  $('tall').replaceChildren(...rows);
}

function listRow(i) {
  const group = shown[i];
  const s = group[0];
  const cells = make('span', group.slice(0, 24).map((t) => make('i', '', {
    style: `background:${rewardColour(samples.reward[t])};opacity:${
      matches[t] ? 1 : 0.25}`})), {className: 'cells'});
  const head = make('div', [
    ...(runs.length > 1 ? [dot(samples.run[s])] : []), where(s), cells],
  {className: 'head'});
  return make('div', [head, make('div', gist(data.texts[samples.prompt[s]]))], {
    className: 'row', role: 'option', id: `row-${i}`,
    'aria-selected': String(i === current), style: `top:${i * ROW}px`,
    onclick: () => choose(i)});
}

function where(s) {
  const step = samples.step[s];
  const source = data.texts[samples.source[s]];
  return [step == null ? source : `step ${step}`,
    source === 'train' || step == null ? '' : source,
    data.texts[samples.kind[s]]].filter(Boolean).join(' · ');
}

// The last words of a prompt tell problems apart; markup of chats does not.
function gist(prompt) {
  const lines = prompt.replace(/<[|/]?[\w ]*[|]?>/g, '\n').split('\n').map(
    (text) => text.trim()).filter((text) => text.length > 12);
  return lines.length ? lines[lines.length - 1].slice(-160) :
    prompt.slice(-160);
}

let rewards;
function rewardColour(reward) {
  if (reward == null) return 'var(--line)';
  const [low, high] = rewards;
  // A reward below 1 is no success: it is never blue.
  const share = reward < 1 ? Math.min(0.5, high > low ?
    (reward - low) / (high - low) : reward > 0) :
    high > low ? (reward - low) / (high - low) : 1;
  return share > 0.5 ? `rgba(var(--high), ${0.2 + 0.8 * (2 * share - 1)})` :
    `rgba(var(--low), ${0.2 + 0.8 * (1 - 2 * share)})`;
}

function choose(i) {
  current = Math.min(Math.max(i, 0), shown.length - 1);
  const list = $('list');
  const top = current * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) {
    list.scrollTop = top + ROW - list.clientHeight;
  }
  list.setAttribute('aria-activedescendant', `row-${current}`);
  drawList();
  drawGroup();
}

// ---- one group

const KINDS = {none: 'no colour', logprob: 'log-prob', advantage: 'advantage',
  acceptance: 'acceptance'};

function has(group, kind) {
  const column = {logprob: 1, acceptance: 2}[kind];
  if (kind === 'none') return true;
  if (kind === 'advantage') {
    return group.some((s) => samples.advantage[s] != null);
  }
  return group.some((s) => valuesOf(s).some((of) => of && of[column]));
}

function drawGroup() {
  const box = $('group');
  const group = shown[current];
  if (!group) {
    box.replaceChildren(make('p', 'No response matches the filters.',
      {className: 'soft'}));
    return;
  }
  const s = group[0], found = pattern();
  const known = Object.keys(KINDS).filter((kind) => has(group, kind));
  if (!known.includes(view.colour)) view.colour = 'none';
  const bar = make('div', make('b', where(s)), {className: 'bar'});
  if (runs.length > 1) bar.append(make('span', [
    dot(samples.run[s]), runs[samples.run[s]].name]));
  if (known.length > 1) {
    bar.append(make('label', ['Tokens by ', make('select', known.map(
      (kind) => make('option', KINDS[kind], {
        value: kind, selected: kind === view.colour})), {
      id: 'colour', onchange: (event) => {
        view.colour = event.target.value;
        drawGroup();
      }})]), ...scale(group));
  }
  const reference = data.texts[samples.reference[s]];
  box.replaceChildren(bar, make('div', marked(data.texts[samples.prompt[s]],
    found), {className: 'box prompt'}),
  ...(reference ? [make('div', [make('span', 'Reference: ',
    {className: 'soft'}), make('span', reference)], {className: 'box'})] : []),
  ...group.map((t) => response(t, group, found)));
}

function scale(group) {
  const low = 'rgba(var(--low), .75)', clear = 'rgba(var(--low), 0)';
  const [from, to, colours] = {
    none: ['', '', ''], logprob: ['-6 nats', '0', `${low}, ${clear}`],
    acceptance: ['0', '1', `${low}, ${clear}`],
    advantage: ['-', '+', `${low}, ${clear}, rgba(var(--high), .75)`],
  }[view.colour];
  return colours ? [make('span', [from, make('span', '', {
    className: 'scale', style: `background:linear-gradient(90deg, ${colours})`}),
  to])] : [];
}

function response(s, group, found) {
  const {reward, advantage, sample} = samples;
  const detail = data.texts[samples.detail[s]];
  const head = make('div', [
    make('span', `#${sample[s] ?? ''}`),
    make('span', ['reward ', make('b', number(reward[s]))]),
    make('b', data.texts[samples.verdict[s]]),
    ...(advantage[s] == null ? [] : [make('span', `advantage ${
      number(advantage[s], 3)}`)]),
    ...(data.tokens[s] ? [make('span', total(s))] : []),
    ...(detail ? [make('span', detail)] : [])], {className: 'head'});
  return make('div', [head, logged('rewards', samples.rewards[s]),
    logged('logged', samples.extra[s]), ...blocks(s, found, group)], {
    className: 'response' + (matches[s] ? '' : ' other')});
}

function logged(what, values) {
  return make('div', values ? [what, ...Object.entries(values).map(
    ([name, value]) => make('span', [`${name} `, make('b',
      value == null || isNumber(value) ? number(value) :
        typeof value === 'string' ? value : JSON.stringify(value))]))] : [],
  {className: 'head'});
}

// The environment answers each turn of the model; the model has not read the
// answer to the last.
function blocks(s, found, group) {
  const body = (text, values) => make('div', view.colour === 'none' ?
    marked(text, found) : view.colour === 'advantage' ? [make('span', text, {
      style: tint(samples.advantage[s] / extreme(group))})] :
      tokens(text, values), {className: 'box'});
  const turns = samples.turns[s];
  const values = valuesOf(s);
  if (!turns.length) return [body(samples.response[s], values[0])];
  const tool = setting(samples.run[s], 'task.name') === 'tools';
  return turns.flatMap(([text, observation, reward], i) => [
    make('div', [make('span', `model, turn ${i + 1}` + (tool || reward == null ?
      '' : ` · reward ${number(reward)}`)), body(text, values[i])],
    {className: 'block'}),
    ...(observation ? [make('div', [make('span', (tool ? 'tool' :
      'environment') + (i === turns.length - 1 ? ', not read' : '')),
    make('div', marked(observation, found), {className: 'box'})],
    {className: 'block read'})] : [])]);
}

// Returns [characters, log-probs, acceptance] of each turn, or null.
const valuesOf = (s) => samples.turns[s].length ? data.tokens[s] || [] :
  [data.tokens[s]];

const extreme = (group) => most(group.map(
  (s) => Math.abs(samples.advantage[s] ?? 0))) || 1;

function total(s) {
  const known = valuesOf(s).filter(Boolean);
  const sum = known.flatMap(([, logprobs]) => logprobs || []).reduce(
    (a, b) => a + b, 0);
  return `${many(known.flatMap(([chars]) => chars).length, 'token')} recorded, ` +
    `log-prob ${number(sum)}`;
}

const tint = (x) => !x ? '' : `background:rgba(var(--${x < 0 ? 'low' : 'high'}), ${
  (0.75 * Math.min(1, Math.abs(x))).toFixed(3)})`;

function tokens(said, known) {
  const text = [...said];
  const [chars, logprobs, acceptance] = known || [[], null, null];
  const values = (view.colour === 'logprob' ? logprobs : acceptance) || [];
  let at = 0;
  const nodes = chars.map((count, i) => {
    const piece = text.slice(at, at += count).join('');
    const title = [logprobs && `log-prob ${logprobs[i]}`,
      acceptance && `acceptance ${acceptance[i]}`].filter(Boolean);
    const strength = values[i] == null ? 0 :
      view.colour === 'logprob' ? values[i] / 6 : values[i] - 1;
    return make('span', count ? piece : '▪', {
      title: title.join(', '), style: tint(strength)});
  });
  return [...nodes, text.slice(at).join('')];
}

function marked(text, found) {
  if (!found) return [text];
  const nodes = [];
  let at = 0;
  for (const hit of text.matchAll(new RegExp(found.source, 'gi'))) {
    if (!hit[0] || nodes.length > 500) continue;
    nodes.push(text.slice(at, hit.index), make('mark', hit[0]));
    at = hit.index + hit[0].length;
  }
  return [...nodes, text.slice(at)];
}

// ---- the page

function open(tab) {
  view.tab = tab;
  for (const name of ['run', 'samples']) {
    $(name).hidden = name !== tab;
    $(`tab-${name}`).setAttribute('aria-selected', String(name === tab));
  }
  if (tab === 'run') drawRun(); else choose(current);
}

function drawRun() {
  drawPlot();
  drawCurves();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  if (data) drawCurves();
}

function otherTheme() {
  theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
}

function key(event) {
  const {target, key: pressed} = event;
  const typing = target.matches('select, input:not([type=checkbox])');
  if (pressed === 'Escape' && typing) target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = {j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 10,
    PageUp: -10, Home: -1e9, End: 1e9};
  const inGroup = target.closest('#group') && pressed.length > 1;
  const action = {
    1: () => open('run'), 2: () => open('samples'), t: otherTheme,
    '?': () => $('keys').showModal(),
    '/': () => {
      open('samples');
      $('f-text').focus();
    },
    c: () => {
      const known = Object.keys(KINDS).filter((k) => has(shown[current], k));
      view.colour = known[(known.indexOf(view.colour) + 1) % known.length];
      drawGroup();
    }}[pressed] || (view.tab === 'samples' && !inGroup && moves[pressed] &&
      (() => choose(current + moves[pressed])));
  if (!action || (pressed === 'c' && !shown[current])) return;
  event.preventDefault();
  action();
}

function listen() {
  $('tab-run').onclick = () => open('run');
  $('tab-samples').onclick = () => open('samples');
  $('theme').onclick = otherTheme;
  $('help').onclick = () => $('keys').showModal();
  $('smooth').value = view.smooth;
  $('smooth').oninput = (event) => {
    view.smooth = Number(event.target.value);
    drawCurves();
  };
  $('axis').onchange = (event) => {
    view.axis = event.target.value;
    view.zoom = null;
    drawCurves();
  };
  $('log').onchange = (event) => {
    view.log = event.target.checked;
    drawCurves();
  };
  $('zoom').onclick = () => {
    view.zoom = null;
    drawCurves();
  };
  $('plot-x').onchange = $('plot-y').onchange = drawPlot;
  $('when').onchange = $('together').onchange = ({target}) => {
    view.when = $('when').value;
    view.together = $('together').checked;
    if (target === $('together')) view.off.clear();
    drawSets();
    drawRun();
    filter();
  };
  let waiting;
  $('filters').oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 100);
  };
  $('filters').onreset = () => setTimeout(filter);
  $('filters').onsubmit = (event) => event.preventDefault();
  $('list').onscroll = drawList;
  document.onkeydown = key;
  document.onclick = (event) => {
    if (!event.target.closest('#pick')) $('pick').open = false;
  };
  window.onresize = () => view.tab === 'run' ? drawRun() : drawList();
}

async function start() {
  theme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  try {
    data = await load();
  } catch (error) {
    $('state').textContent = `The data of this page cannot be read (${error}): ` +
      'open it in a browser of 2023 or later.';
    return;
  }
  ({samples, runs} = data);
  for (const name of ['run', 'step', 'source', 'kind', 'verdict', 'response',
    'turns']) samples[name] ||= [];  // of a run without samples
  samples.turns.forEach((turns, s) => samples.response[s] ||= turns.map(
    ([text, said]) => said ? `${text} [${said}]` : text).join(' '));
  const known = (samples.reward || []).filter((x) => x != null);
  rewards = known.length ? [least(known), most(known)] : [0, 1];
  makeGroups();
  $('one').hidden = runs.length > 1;
  $('several').hidden = runs.length < 2;
  drawSets();
  $('l-together').hidden = sets.length === runs.length;
  if (runs.length < 2) drawFigures();
  drawSettings();
  drawPicker();
  drawFilters();
  listen();
  filter();
  $('state').hidden = true;
  open(location.hash === '#samples' ? 'samples' : 'run');
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

start();
