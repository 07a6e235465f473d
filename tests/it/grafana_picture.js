// Draws a dashboard as Grafana lays it out: each panel from its JSON and the answer to its query. It is no Grafana: it knows
// the six kinds of panels that the dashboards have, and of their options those that show in a picture.
'use strict';

const COLUMNS = 24, ROW = 38, GAP = 8;
const WIDTH = document.documentElement.clientWidth - 2 * GAP;
const COLOURS = {
  red: '#d10e5c', orange: '#c4650a', yellow: '#8f7a00', green: '#1b855e', blue: '#3871dc', text: '#24292e',
};
const SERIES = ['#3871dc', '#c4650a', '#1b855e', '#8a4fbf', '#d10e5c', '#8f7a00', '#198aa8', '#7a5a44'];

const SVG = 'http://www.w3.org/2000/svg';
function part(name, attributes, ...children) {
  const node = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const SVG_NAMES = new Set(['svg', 'rect', 'path', 'text', 'line', 'circle', 'g', 'title']);

/** The settings of a column: the defaults, then the overrides whose pattern matches its name. */
function look(panel, name) {
  const found = { ...panel.fieldConfig.defaults };
  for (const override of panel.fieldConfig.overrides) {
    const pattern = override.matcher.options.replace(/^\/|\/$/g, '');
    if (!new RegExp(pattern).test(name)) continue;
    for (const { id, value } of override.properties) found[id] = value;
  }
  return found;
}

const isTime = (type) => /Date/.test(type);
const isNumber = (type) => /^(Nullable\()?(U?Int|Float|Decimal)/.test(type);

function mapped(look, value) {
  for (const { type, options } of look.mappings ?? []) {
    if (type === 'value' && options[value]) return options[value];
    if (type === 'range' && value !== '' && options.from <= Number(value) && Number(value) <= options.to) return options.result;
    if (type !== 'regex') continue;
    const pattern = new RegExp(options.pattern.replace(/^\/|\/$/g, ''));
    if (pattern.test(value)) return { text: String(value).replace(pattern, options.result.text) };
  }
  return null;
}

function shown(look, type, value) {
  if (value === null || value === undefined) return '';
  const text = mapped(look, value)?.text;
  if (text !== undefined) return text;
  if (isTime(type)) return String(value).slice(0, 19);
  if (!isNumber(type)) return String(value);
  const n = Number(value);
  if (!Number.isFinite(n)) return '';
  const decimals = look.decimals ?? (Number.isInteger(n) ? 0 : Math.abs(n) < 10 ? 2 : 1);
  const of = (n, digits) => n.toLocaleString('en', { maximumFractionDigits: digits, minimumFractionDigits: Math.min(digits, 1) });
  if (look.unit === 'percentunit') return `${of(100 * n, look.decimals ?? 0)} %`;
  if (look.unit === 'ms') return `${of(n, decimals)} ms`;
  if (look.unit === 's') return n < 120 ? `${of(n, 0)} s` : `${of(n / 60, 1)} min`;
  if (look.unit?.startsWith('suffix:')) return of(n, decimals) + look.unit.slice(7);
  return n.toLocaleString('en', { maximumFractionDigits: decimals });
}

function colour(look, value) {
  const named = mapped(look, value)?.color;
  if (named) return COLOURS[named] ?? named;
  let step = 'text';
  for (const { color, value: from } of look.thresholds?.steps ?? []) {
    if (from === null || Number(value) >= from) step = color;
  }
  return COLOURS[step] ?? COLOURS.text;
}

function stat(panel, body) {
  const { meta, data } = panel.answer;
  body.classList.add('stats');
  meta.forEach(({ name, type }, at) => {
    const settings = look(panel, name);
    const value = part('b', {}, shown(settings, type, data[0][at]));
    value.style.color = colour(settings, data[0][at]);
    body.append(part('div', {}, part('span', {}, settings.displayName ?? name), value));
  });
}

function table(panel, body) {
  const { meta, data } = panel.answer;
  const columns = meta.map((column, at) => ({ ...column, at, look: look(panel, column.name) }))
    .filter(({ look }) => !look['custom.hidden']);
  // Columns share the width but for those whose least width is more.
  const least = ({ look }) => look['custom.minWidth'] ?? look.custom.minWidth;
  let free = body.clientWidth, sharing = [...columns].sort((a, b) => least(b) - least(a));
  for (const column of [...sharing]) {
    const share = free / sharing.length;
    column.width = Math.max(share, least(column));
    free -= column.width;
    sharing = sharing.slice(1);
  }
  const isRight = ({ look, type }) => isNumber(type) && !(look.mappings ?? []).some(({ type }) => type === 'value');
  const head = part('tr', {}, ...columns.map((column) => {
    const cell = part('th', isRight(column) ? { class: 'n' } : {}, column.look.displayName ?? column.name);
    cell.style.width = `${column.width}px`;
    return cell;
  }));
  const rows = data.slice(0, 40).map((row) => part('tr', {}, ...columns.map((column) => {
    const { look, type, at } = column;
    const cell = part('td', isRight(column) ? { class: 'n' } : {}, shown(look, type, row[at]));
    cell.style.color = look.links ? COLOURS.blue : colour(look, row[at]);
    if (look.links) cell.classList.add('link');
    return cell;
  })));
  const drawn = part('table', {}, part('thead', {}, head), part('tbody', {}, ...rows));
  drawn.style.width = `${columns.reduce((sum, { width }) => sum + width, 0)}px`;
  body.append(drawn);
}

/** Rows of a query as series: a value column each, apart by the columns of text. */
function series(panel) {
  const { meta, data } = panel.answer;
  const time = meta.findIndex(({ type }) => isTime(type));
  const labels = meta.map((_, at) => at).filter((at) => at !== time && !isNumber(meta[at].type));
  const values = meta.map((_, at) => at).filter((at) => at !== time && isNumber(meta[at].type));
  const found = new Map();
  for (const row of data) {
    for (const at of values) {
      const label = labels.map((label) => row[label]).join(' ');
      const settings = look(panel, meta[at].name);
      const name = (settings.displayName ?? label).replace('${__field.labels.cohort}', label);
      if (!found.has(name)) found.set(name, { name, look: settings, type: meta[at].type, points: [] });
      const value = row[at] === null ? null : Number(row[at]);
      found.get(name).points.push([Date.parse(`${row[time].replace(' ', 'T')}Z`), value]);
    }
  }
  return [...found.values()];
}

function plot(body, legend) {
  const height = body.clientHeight - legend, width = body.clientWidth;
  const svg = part('svg', { width, height, viewBox: `0 0 ${width} ${height}` });
  body.append(svg);
  return { svg, width, height, left: 58, right: width - 8, top: 8, bottom: height - 20 };
}

const text = (x, y, anchor, words) => part('text', { x, y, 'text-anchor': anchor }, words);

function timeAxis({ svg, left, right, bottom }, times) {
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const x = (at) => left + (right - left) * (last > first ? (at - first) / (last - first) : 0.5);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const at = first + share * (last - first);
    const anchor = share === 0 ? 'start' : share === 1 ? 'end' : 'middle';
    svg.append(text(x(at), bottom + 15, anchor, new Date(at).toISOString().slice(11, 19)));
  }
  return x;
}

function valueAxis({ svg, left, right, top, bottom, isRight }, most, settings) {
  const rough = most / 4 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const end = Math.ceil(most / step) * step || 1;
  const y = (value) => bottom - ((bottom - top) * value) / end;
  for (let value = 0; value <= end * 1.001; value += step) {
    const words = shown({ ...settings, mappings: [] }, 'Float64', value);
    svg.append(text(isRight ? right + 6 : left - 6, y(value) + 4, isRight ? 'start' : 'end', words));
    if (!isRight) svg.append(part('line', { x1: left, x2: right, y1: y(value), y2: y(value), class: 'grid' }));
  }
  return y;
}

function keys(body, names) {
  body.append(part('div', { class: 'keys' }, ...names.map((name, at) => {
    const key = part('i', {});
    key.style.background = SERIES[at % SERIES.length];
    return part('span', {}, key, name);
  })));
}

function timeseries(panel, body) {
  const all = series(panel).slice(0, 8);
  const place = plot(body, 14 + 16 * Math.ceil(all.length / 2));
  if (new Set(all.map(({ look }) => look.unit)).size > 1) place.right -= 40;
  const points = all.flatMap(({ points }) => points);
  const x = timeAxis(place, points.map(([at]) => at));
  const [unit, other] = [...new Set(all.map(({ look }) => look.unit))];
  const axis = (unit, place) => {
    const of = all.filter(({ look }) => look.unit === unit);
    return valueAxis(place, Math.max(...of.flatMap(({ points }) => points.map(([, value]) => value ?? 0))), of[0].look);
  };
  const left = axis(unit, place);
  const right = other === undefined ? left : axis(other, { ...place, isRight: true });
  all.forEach(({ points, look }, at) => {
    const y = look.unit === unit ? left : right;
    let path = '', isOn = false;
    points.forEach(([time, value], i) => {
      const isNext = (points[i + 1]?.[1] ?? null) !== null;
      if (value !== null) path += `${isOn ? 'L' : 'M'}${x(time)} ${y(value)}`;
      // A value between gaps is a point.
      if (value !== null && !isOn && !isNext) {
        place.svg.append(part('circle', { cx: x(time), cy: y(value), r: 2, fill: SERIES[at % SERIES.length] }));
      }
      isOn = value !== null;
    });
    place.svg.append(part('path', { d: path, class: 'series', stroke: SERIES[at % SERIES.length] }));
  });
  keys(body, all.map(({ name }) => name));
}

function barchart(panel, body) {
  const { meta, data } = panel.answer;
  const columns = meta.slice(1).map(({ name }, at) => ({ at: at + 1, look: look(panel, name), name }));
  const place = plot(body, 30);
  const isStacked = panel.options.stacking === 'normal';
  const total = (row) => columns.map(({ at }) => Number(row[at])).reduce((a, b) => (isStacked ? a + b : Math.max(a, b)), 0);
  const y = valueAxis(place, Math.max(...data.map(total)), columns[0].look);
  const slot = (place.right - place.left) / data.length;
  const every = Math.ceil(data.length / Math.floor((place.right - place.left) / 64));
  data.forEach((row, i) => {
    let base = 0;
    columns.forEach(({ at }, j) => {
      const value = Number(row[at]), width = Math.min(80, slot * 0.8) / (isStacked ? 1 : columns.length);
      const x = place.left + slot * (i + 0.5) + (isStacked ? -width / 2 : width * (j - columns.length / 2));
      const [from, to] = [isStacked ? base : 0, (isStacked ? base : 0) + value];
      base += value;
      place.svg.append(part('rect', { x, width, y: y(to), height: y(from) - y(to), fill: SERIES[j % SERIES.length] }));
    });
    if (i % every === 0) place.svg.append(text(place.left + slot * (i + 0.5), place.bottom + 15, 'middle', String(row[0])));
  });
  keys(body, columns.map(({ look, name }) => look.displayName ?? name));
}

function states(panel, body) {
  const all = series(panel), place = plot(body, 30);
  place.left = 170;
  const times = [...new Set(all.flatMap(({ points }) => points.map(([at]) => at)))].sort((a, b) => a - b);
  const x = timeAxis(place, times), lane = (place.bottom - place.top) / all.length;
  const seen = new Map();
  all.forEach(({ name, look, points }, at) => {
    place.svg.append(text(place.left - 8, place.top + lane * (at + 0.5) + 4, 'end', name));
    points.forEach(([time, value], i) => {
      if (value === null || i === 0) return;
      const from = x(points[i - 1][0]);
      seen.set(mapped(look, value)?.text ?? value, colour(look, value));
      place.svg.append(part('rect', { x: from, width: x(time) - from + 0.5, y: place.top + lane * (at + 0.05), height: lane * 0.9, fill: colour(look, value) }));
    });
  });
  body.append(part('div', { class: 'keys' }, ...[...seen].map(([name, of]) => {
    const key = part('i', {});
    key.style.background = of;
    return part('span', {}, key, name);
  })));
}

function heatmap(panel, body) {
  const cells = panel.answer.data.map(([time, le, runs]) => [Date.parse(`${time.replace(' ', 'T')}Z`), Number(le), Number(runs)]);
  const place = plot(body, 4);
  const times = [...new Set(cells.map(([at]) => at))], x = timeAxis(place, times);
  const edges = [...new Set(cells.map(([, le]) => le))].sort((a, b) => a - b);
  const [low, high] = [Math.log(edges[0] / 1.09), Math.log(edges.at(-1))], most = Math.max(...cells.map(([, , runs]) => runs));
  const y = (ms) => place.bottom - ((place.bottom - place.top) * (Math.log(ms) - low)) / (high - low);
  const width = (place.right - place.left) / times.length;
  for (const [at, le, runs] of cells) {
    const left = Math.min(x(at), place.right - width);
    place.svg.append(part('rect', { x: left, width, y: y(le), height: y(le / 1.0905) - y(le), fill: '#3871dc', opacity: 0.15 + 0.85 * Math.sqrt(runs / most) }));
  }
  for (const share of [0, 0.33, 0.66, 1]) {
    const ms = Math.exp(low + share * (high - low));
    place.svg.append(text(place.left - 6, y(ms) + 4, 'end', `${ms.toFixed(ms < 10 ? 1 : 0)} ms`));
  }
}

const KINDS = { stat, table, timeseries, barchart, heatmap, 'state-timeline': states };

function draw(dashboard, caption) {
  document.body.append(part('h1', {}, `epwatch / ${dashboard.title}`));
  const board = part('main', {});
  document.body.append(board);
  let bottom = 0;
  for (const panel of dashboard.panels) {
    const { x, y, w, h } = panel.gridPos, unit = (WIDTH + GAP) / COLUMNS;
    const box = part('section', { class: panel.type });
    Object.assign(box.style, { left: `${x * unit}px`, top: `${y * ROW}px`, width: `${w * unit - GAP}px`, height: `${h * ROW - GAP}px` });
    box.append(part('h2', {}, panel.type === 'row' ? `${panel.collapsed ? '\u203a' : '\u2304'} ${panel.title}` : panel.title));
    board.append(box);
    bottom = Math.max(bottom, (y + h) * ROW);
    if (panel.type === 'row') continue;
    const body = part('div', { class: 'body' });
    box.append(body);
    if (panel.answer.data.length === 0) body.append(part('p', {}, panel.fieldConfig.defaults.noValue));
    else KINDS[panel.type](panel, body);
  }
  board.style.height = `${bottom}px`;
  document.body.append(part('footer', {}, caption));
}
