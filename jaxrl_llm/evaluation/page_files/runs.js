'use strict';
// Several runs: their sets, the table and the plot. A set has the runs that
// differ in their seeds alone; each run is its own if they are not together.
const COLOURS = ['#2a6fbb', '#c65414', '#2e8b57', '#a0489d', '#b8860b',
  '#3aa3b8', '#d1495b', '#7a8290'];
let sets, setOf, columns;

const isNumber = (x) => typeof x === 'number';
const isSeed = (name) => /(^|\.)seed$/.test(name);
const setting = (at, name) => runs[at].config[name] ?? null;
const json = (at, name) => JSON.stringify(setting(at, name));
const differs = (name) => runs.some(
  (_, at) => json(at, name) !== json(0, name));
const done = (at) => runs[at].done.steps != null;
const average = (xs) => xs.length ? xs.reduce((a, b) => a + b, 0) / xs.length :
  null;
const fixed = (x) => !isNumber(x) ? '–' : Math.abs(x) < 100 ? x.toFixed(3) :
  number(x);
const say = (x) => x == null ? '–' : String(
  isNumber(x) && !Number.isInteger(x) ? +x.toPrecision(6) : x);
// Hues in even distances, on two levels of lightness.
const hue = (i) => sets.length <= COLOURS.length ? COLOURS[i] :
  `oklch(${i % 2 ? 0.69 : 0.53} 0.13 ${360 * i / sets.length})`;
const colour = (at) => hue(setOf[at]);

function makeSets() {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const differing = names.sort().filter(
    (name) => name !== 'workdir' && differs(name));
  const kept = differing.filter((name) => !isSeed(name));
  const found = new Map();
  runs.forEach((run, at) => {
    const key = view.together && Object.keys(run.config).length ?
      kept.map((name) => json(at, name)).join() : at;
    found.set(key, [...found.get(key) || [], at]);
  });
  columns = [{name: 'run', label: 'run', of: (at) => runs[at].name},
    ...estimateColumns(),
    ...differing.map((name) => settingColumn(name, differing))];
  sets = [...found.values()].map((members) => ({members,
    name: members.length < 2 ? runs[members[0]].name :
      columns.filter((column) => kept.includes(column.isSetting)).map(
        (column) => `${column.label} ${say(column.of(members[0]))}`).join(', ') ||
      'all runs'}));
  setOf = [];
  sets.forEach(({members}, i) => members.forEach((at) => setOf[at] = i));
}

function settingColumn(name, names) {
  const last = (x) => x.split('.').pop();
  const alone = names.filter((x) => last(x) === last(name)).length === 1;
  return {name: `config.${name}`, label: alone ? last(name) : name,
    isSetting: name, of: (at) => {
      const value = setting(at, name);
      return value == null || isNumber(value) || typeof value === 'string' ?
        value : JSON.stringify(value);
    }};
}

// An estimate is of summary.json; of a run under way, the latest of its rows.
function estimateColumns() {
  const names = new Set(runs.flatMap(({figures, metrics}) => [
    ...Object.keys(figures), ...Object.keys(metrics).filter((name) =>
      /^eval\/(pass@|greedy)/.test(name) && !name.endsWith('_error')).map(
      (name) => name.slice(5))]));
  const known = (at, name) => (runs[at].metrics[name] || []).filter(isNumber);
  const column = (name, label, pair) => ({name, label, isEstimate: true,
    of: (at) => {
      const {start, final} = pair(at);
      const value = view.when === 'change' ? isNumber(start) &&
        isNumber(final) && final - start : view.when === 'start' ? start : final;
      return isNumber(value) ? value : null;
    }});
  return [
    ...[...names].map((name) => column(name, name, (at) =>
      runs[at].figures[name] || {final: known(at, `eval/${name}`).pop()})),
    column('mean reward of 10 rows', 'reward', (at) => ({
      start: average(known(at, 'reward/mean').slice(0, 10)),
      final: average(known(at, 'reward/mean').slice(-10))})),
    {name: 'steps done', label: 'steps done',
      of: (at) => runs[at].done.steps ?? known(at, 'step').pop() ?? 0},
    {name: 'minutes', label: 'minutes', of: (at) => +((runs[at].done.seconds ??
      known(at, 'seconds/step').reduce((a, b) => a + b, 0)) / 60).toPrecision(3)}];
}

// Of the runs that are done, if there are any.
function interval({members}, column) {
  const ended = members.filter(done);
  const values = (ended.length ? ended : members).map(column.of).filter(isNumber);
  const mean = average(values), n = values.length;
  const half = n < 2 ? null : data.quantiles[n - 2] * Math.sqrt(
    values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1) / n);
  return {mean, half, said: `mean of ${many(n, 'run')}` + (half == null ? '' :
    ` ± 95% interval by Student's t, ${
      number(data.quantiles[n - 2])} sd / √${n}`)};
}

// ---- the table

function drawTable() {
  const table = $('table');
  table.replaceChildren(make('thead', make('tr', columns.map((column) => make(
    'th', make('button', column.label, {title: column.name, onclick: () => {
      view.sign = view.sort === column.name ? -view.sign : 1;
      view.sort = column.name;
      sortTable();
    }}), {scope: 'col'})))));
  sortTable();
}

function sortTable() {
  const table = $('table');
  const by = columns.find(({name}) => name === view.sort);
  columns.forEach((column, i) => table.rows[0].cells[i].setAttribute(
    'aria-sort', column !== by ? 'none' :
      view.sign > 0 ? 'ascending' : 'descending'));
  const sorted = (items, key) => by ? [...items].sort(
    (a, b) => compare(key(a), key(b), view.sign)) : items;
  const rows = (set) => sorted(set.members, (at) => by.of(at));
  const overall = (set) => interval(set, by).mean ?? by.of(rows(set)[0]);
  [...table.tBodies].forEach((body) => body.remove());
  table.append(...sorted(sets, overall).map((set) => make('tbody', [
    ...(set.members.length > 1 ? [meanRow(set)] : []), ...rows(set).map(row)])));
}

// Missing values are last in both directions, and numbers before texts.
function compare(a, b, sign = 1) {
  if (a == null || b == null) return (a == null) - (b == null);
  return sign * (isNumber(a) && isNumber(b) ? a - b :
    isNumber(b) - isNumber(a) ||
    String(a).localeCompare(String(b), 'en', {numeric: true}));
}

function row(at) {
  const {name, path} = runs[at];
  const under = done(at) ? '' : 'the run is not done';
  return make('tr', [make('td', [dot(at), name], {title: path}),
    ...columns.slice(1).map((column) => {
      const value = column.of(at);
      const text = column.isEstimate ? fixed(value) : say(value);
      return make('td', column.name === 'steps done' && under ?
        `${text}, not done` : text, {
        className: under && !column.isSetting ? 'soft' : '',
        title: column.isSetting ? text : under});
    })]);
}

function meanRow(set) {
  const {members, name} = set;
  return make('tr', [make('td', [dot(members[0]), name,
    make('span', ` × ${members.length}`, {className: 'soft'})], {title: name}),
  ...columns.slice(1).map((column) => {
    const values = new Set(members.map(column.of));
    const {mean, half, said} = interval(set, column);
    return !column.isEstimate ?
      make('td', values.size > 1 ? '' : say([...values][0])) :
      make('td', fixed(mean) + (half == null ? '' : ` ± ${fixed(half)}`),
        {title: said});
  })], {className: 'mean'});
}

// ---- the plot of a setting and an estimate

function drawPlotFields() {
  const options = (id, of) => {
    const before = $(id).value;
    $(id).replaceChildren(...of.map(({name, label}) => make(
      'option', label, {value: name, title: name})));
    const first = of.find(({name}) => name === before) ||
      of.find(({name}) => !isSeed(name)) || of[0];
    if (first) $(id).value = first.name;
    return !of.length;
  };
  $('against').hidden = options('plot-x', columns.filter((c) => c.isSetting));
  options('plot-y', columns.filter((c) => c.isEstimate));
}

// Returns places from 0 to 1 and ticks; decades have a logarithmic axis, or are
// categories if 0 is among them, as texts are.
function axisOf(values) {
  const unique = [...new Set(values)].sort(compare);
  const positive = unique.filter((x) => x > 0);
  const numeric = unique.every(isNumber) && unique.length > 1;
  const decades = positive.length && positive[positive.length - 1] >=
    10 * positive[0] && unique[0] >= 0;
  if (!numeric || decades && unique[0] === 0) {
    return {ticks: unique, place: (x) => (unique.indexOf(x) + 0.5) / unique.length};
  }
  const scale = decades ? Math.log10 : (x) => x;
  const low = scale(unique[0]), high = scale(unique[unique.length - 1]);
  return {place: (x) => 0.05 + 0.9 * (scale(x) - low) / (high - low),
    ticks: unique.length <= 8 ? unique : ticks(low, high, 5).map(
      (t) => decades ? +(10 ** t).toPrecision(3) : t)};
}

function drawPlot() {
  const out = $('plot'), width = out.clientWidth, height = 240;
  const [x, y] = ['plot-x', 'plot-y'].map(
    (id) => columns.find(({name}) => name === $(id).value));
  if (!width || !x || !y) return;
  const draw = (kind, more, ...content) => {
    const node = document.createElementNS(out.namespaceURI, kind);
    for (const [name, value] of Object.entries(more)) {
      node.setAttribute(name, value);
    }
    node.append(...content);
    out.append(node);
    return node;
  };
  out.replaceChildren();
  const on = [...runs.keys()].filter(
    (at) => !view.off.has(at) && y.of(at) != null);
  if (!on.length) return draw('text', {x: 8, y: 20}, 'no values');
  const value = (at) => x.of(at) ?? '–';
  const axis = axisOf(on.map(value));
  const bars = isSeed(x.name) ? [] : sets.filter(({members}) => members.some(
    (at) => on.includes(at))).map((set) => ({set, ...interval(set, y)})).filter(
    ({half}) => half != null);
  const ys = on.map(y.of), ends = bars.flatMap(
    ({mean, half}) => [mean - half, mean + half]);
  // Intervals of two runs are wide: their ends may lie outside.
  const room = (most(ys) - least(ys)) / 2 || Math.abs(ys[0]) / 10 || 1;
  const low = Math.max(least([...ys, ...ends]), least(ys) - room) - room / 9;
  const high = Math.min(most([...ys, ...ends]), most(ys) + room) + room / 9;
  const px = (v) => 50 + axis.place(v) * (width - 90);
  const py = (v) => height - 34 - Math.min(1, Math.max(0, (v - low) /
    (high - low))) * (height - 48);
  for (const t of ticks(low, high, 4)) {
    draw('path', {d: `M48 ${py(t)}H${width - 8}`});
    draw('text', {x: 42, y: py(t) + 4, 'text-anchor': 'end'}, number(t, 3));
  }
  let free = 0;
  for (const t of axis.ticks) {
    const text = say(t).length > 16 ? `${say(t).slice(0, 15)}…` : say(t);
    const half = 3.2 * text.length + 3;
    const at = Math.min(px(t), width - half);
    if (at - half < free) continue;
    free = at + half;
    draw('text', {x: at, y: height - 14, 'text-anchor': 'middle'}, text);
  }
  const beside = {};
  for (const {set, mean, half, said} of bars) {
    const place = value(set.members[0]), ink = colour(set.members[0]);
    beside[place] = (beside[place] || 5) + 5;
    const at = px(place) + beside[place];
    draw('path', {style: `stroke:${ink};stroke-width:2`, d: `M${at} ${
      py(mean - half)}V${py(mean + half)}M${at - 5} ${py(mean)}h10`},
    make('title', `${set.name}: ${number(mean)}, ${said}`));
  }
  for (const at of on) {
    draw('circle', {cx: px(value(at)), cy: py(y.of(at)), r: 4.5, style:
      `stroke:${colour(at)};fill:${done(at) ? colour(at) : 'none'}`,
    'fill-opacity': 0.7}, make('title', `${runs[at].name}: ${x.label} ${
      say(value(at))}, ${y.label} ${number(y.of(at))}${
      done(at) ? '' : ', not done'}`));
  }
}
