// Curves of runs. uPlot draws; this adds the readout under the pointer, the keyboard, and a table.

const charts = new Map(); // id of the container → {plot, spec}
const AXES = {
  epoch: { name: 'Epochs', unit: 'epochs', column: 'epoch', shift: 1, whole: true, format: (x) => significant(x) },
  samples: { name: 'Samples', unit: 'training samples of all workers', column: 'samples', format: (x) => significant(x, 4) },
  seconds: { name: 'Seconds', unit: 'seconds of training and saving, without evaluation', column: 'total/seconds', format: seconds },
  bytes: { name: 'Bytes', unit: 'bytes that one worker has sent (logarithmic)', column: 'total/bytes', log: true, format: bytes },
};

// The points of a run: ascending x, and only where both are known (positive on logarithmic scales).
function points(run, axis, column, logY) {
  const xs = [], ys = [], from = run.columns[axis.column] || [], values = run.columns[column] || [];
  values.forEach((value, i) => {
    const at = from[i] === undefined || from[i] === null ? null : from[i] + (axis.shift || 0);
    if (value === null || at === null || (axis.log && at <= 0) || (logY && value <= 0)) return;
    if (xs.length && at <= xs[xs.length - 1]) return;
    xs.push(at);
    ys.push(value);
  });
  return [xs, ys];
}

// spec: {label, unit, axis, column, logY, format, height, line} → curves of all runs of the task.
function runChart(id, spec) {
  const picked = pickedRuns();
  const pale = spec.background === false ? [] : ofTask().filter((run) => !state.picked.has(run.folder)).slice(0, 200);
  const curves = [...pale, ...picked].filter(spec.keep || (() => true)).map((run) => ({ run, points: points(run, spec.axis, spec.column, spec.logY) }))
    .filter((curve) => curve.points[0].length)
    .map((curve) => ({ ...curve, name: curve.run.label, colour: colourOf(curve.run), dash: dashOf(curve.run), isPale: !state.picked.has(curve.run.folder), dots: curve.points[0].length < 3 }));
  drawChart(id, { ...spec, curves });
}

function drawChart(id, spec) {
  const target = $(id);
  charts.get(id)?.plot?.destroy();
  charts.delete(id);
  target.classList.add('chart');
  const open = target.querySelector('details')?.open || false;
  if (!spec.curves.length) {
    show(target, el('p', { class: 'none' }, spec.none || 'Nothing was measured yet.'));
    return;
  }
  const hadFocus = target.contains(document.activeElement) && document.activeElement.classList.contains('plot');
  const tip = el('div', { class: 'tip', hidden: true });
  const plotBox = el('div', { class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'chart',
    'aria-label': `${spec.label}, ${spec.curves.length} curve${spec.curves.length > 1 ? 's' : ''}. Left and right arrow keys read the values; the table below has them all.` });
  const details = el('details', {}, el('summary', {}, 'Values as a table'));
  details.open = open;
  show(target, el('div', { class: 'unit' }, spec.label), plotBox, el('div', { class: 'unit num' }, spec.axis.unit), tip, details);
  details.addEventListener('toggle', () => fillTable(details, spec));
  if (open) fillTable(details, spec);
  const joined = uPlot.join(spec.curves.map((curve) => curve.points));
  const plot = new uPlot(plotOptions(spec, plotBox, tip, target), joined, plotBox);
  charts.set(id, { plot, spec, box: plotBox });
  plotBox.addEventListener('keydown', (event) => step(event, plot, spec));
  plotBox.addEventListener('blur', () => { tip.hidden = true; });
  if (hadFocus) plotBox.focus({ preventScroll: true });
}

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
const widthOf = (box) => Math.max(box.clientWidth, 200);

function plotOptions(spec, box, tip, target) {
  const decades = (u, splits) => splits.map((value) => (Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9 ? value : null));
  const axis = (isLog, more) => {
    const lines = { stroke: css('--line'), width: 1, ...(isLog ? { filter: decades } : {}) };
    return { stroke: css('--muted'), font: FONT, grid: lines, ticks: lines, ...more };
  };
  const format = (text) => (u, splits) => splits.map((value) => (value === null ? '' : text(value)));
  return {
    width: widthOf(box), height: spec.height || 240, legend: { show: false }, padding: [8, 14, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { show: (u, i) => !spec.curves[i - 1].isPale && undefined } },
    scales: {
      x: { time: false, distr: spec.axis.log ? 3 : 1, range: (u, low, high) => (spec.axis.log ? [low / 1.2, high * 1.2] : [low, high === low ? low + 1 : high]) },
      y: { distr: spec.logY ? 3 : 1, ...(spec.range ? { range: spec.range } : {}) },
    },
    axes: [
      axis(spec.axis.log, { values: format(spec.axis.format), ...(spec.axis.whole ? { incrs: WHOLE } : {}), space: 64, size: 34 }),
      axis(spec.logY, { values: format(spec.tick || spec.format), size: (u, values) => 18 + 8 * Math.max(...(values || ['']).map((v) => (v || '').length), 3) }),
    ],
    series: [{}, ...spec.curves.map((curve) => ({
      label: curve.name, stroke: curve.colour, width: curve.isPale ? 1 : 2, dash: curve.isPale ? [] : curve.dash,
      fill: curve.fill, points: { show: Boolean(curve.dots), size: 7 }, spanGaps: true,
    }))],
    hooks: {
      setCursor: [(u) => readout(u, spec, tip, target)],
      drawClear: [(u) => markLine(u, spec)],
    },
  };
}

function markLine(u, spec) {
  if (!spec.line) return;
  const x = Math.round(u.valToPos(spec.line, 'x', true));
  const { left, top, width, height } = u.bbox;
  if (x < left || x > left + width) return;
  u.ctx.save();
  u.ctx.strokeStyle = css('--muted');
  u.ctx.setLineDash([4, 4]);
  u.ctx.beginPath();
  u.ctx.moveTo(x, top);
  u.ctx.lineTo(x, top + height);
  u.ctx.stroke();
  u.ctx.restore();
}

function nearest(xs, x, isLog) {
  let best = 0;
  const far = (value) => (isLog ? Math.abs(Math.log(value / x)) : Math.abs(value - x));
  xs.forEach((value, i) => { if (far(value) < far(xs[best])) best = i; });
  return best;
}

function valuesAt(spec, x) {
  return spec.curves.filter((curve) => !curve.isPale).map((curve) => {
    const i = nearest(curve.points[0], x, spec.axis.log);
    return { curve, x: curve.points[0][i], y: curve.shown ? curve.shown[i] : curve.points[1][i] };
  });
}

function readout(u, spec, tip, target) {
  const { left, idx } = u.cursor;
  if (left < 0 || idx === null || idx === undefined) { tip.hidden = true; return; }
  const x = u.data[0][idx];
  const rows = valuesAt(spec, x).sort((p, q) => q.y - p.y).slice(0, 10);
  show(tip, el('table', {}, rows.map(({ curve, x: at, y }) => el('tr', {},
    el('td', {}, curve.run ? swatch(curve.run) : el('i', { class: `swatch ${curve.kind}` })), el('td', { class: 'name' }, curve.name),
    el('td', { class: 'num' }, spec.format(y)), spec.each === false ? '' : el('td', { class: 'num muted' }, `at ${spec.axis.format(at)}`)))));
  tip.hidden = false;
  const over = u.over.getBoundingClientRect(), outer = target.getBoundingClientRect();
  const x0 = over.left - outer.left + left;
  const flip = x0 + tip.offsetWidth + 24 > outer.width;
  tip.style.left = `${Math.max(4, flip ? x0 - tip.offsetWidth - 14 : x0 + 14)}px`;
  tip.style.top = `${over.top - outer.top + 8}px`;
}

function step(event, plot, spec) {
  const xs = plot.data[0], moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  if (event.key === 'Escape') { plot.setCursor({ left: -10, top: -10 }); return; }
  if (!(event.key in moves)) return;
  event.preventDefault();
  const now = plot.cursor.left >= 0 && plot.cursor.idx !== null ? plot.cursor.idx : moves[event.key] > 0 ? -1 : xs.length;
  const idx = Math.min(Math.max(now + moves[event.key], 0), xs.length - 1);
  plot.setCursor({ left: plot.valToPos(xs[idx], 'x'), top: 10 });
  $('say').textContent = `${spec.axis.format(xs[idx])}: ${valuesAt(spec, xs[idx]).map(({ curve, y }) => `${curve.name} ${spec.format(y)}`).join(', ')}`;
}

function fillTable(details, spec) {
  details.querySelector('.scroll')?.remove();
  if (!details.open) return;
  const curves = spec.curves.filter((curve) => !curve.isPale);
  const rows = curves.flatMap((curve) => curve.points[0].map((x, i) => [x, curve.name, curve.shown ? curve.shown[i] : curve.points[1][i]]));
  const head = el('thead', {}, el('tr', {}, el('th', { scope: 'col', class: 'text' }, 'Curve'), el('th', { scope: 'col' }, spec.axis.unit), el('th', { scope: 'col' }, spec.label)));
  const body = el('tbody', {}, rows.map(([x, name, y]) => el('tr', {}, el('td', { class: 'text' }, name), el('td', {}, spec.axis.format(x)), el('td', {}, spec.format(y)))));
  details.append(el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${spec.label}, values` }, el('table', {}, head, body)));
}

new ResizeObserver(() => {
  for (const { plot, spec, box } of charts.values()) {
    const width = widthOf(box);
    if (Math.abs(width - plot.width) > 1) plot.setSize({ width, height: spec.height || 240 });
  }
}).observe(document.body);

// ------------------------------------------------------------ the charts of the page

// From the lowest value, or that of the second half of training, to the highest; at most 100 %.
function qualityRange(u, low, high) {
  if (low === null || high === null) return [0, 1];
  if (state.zoom) {
    const later = pickedRuns().flatMap((run) => {
      const values = (run.columns[state.metric] || []).filter((value) => value !== null);
      return values.slice(Math.floor(values.length / 2));
    });
    if (later.length) [low, high] = [Math.min(...later), Math.max(...later)];
  }
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  if (!isPercent(state.metric)) return isLower(state.metric) ? [low / 1.1, high * 1.1] : [low - room, high + room];
  return [Math.max(0, low - room), Math.min(100, high + room)];
}

function drawQuality() {
  const axis = AXES[state.x] || AXES.epoch;
  const left = state.x === 'seconds' && ofTask().some((run) => run.is_simulated);
  const compared = ofTask().filter(comparable);
  runChart('quality-chart', {
    label: metricName(state.metric) + (left ? ', without simulated runs, whose seconds mean little' : ''), axis, column: state.metric,
    format: (y) => quality(y), tick: isPercent(state.metric) ? (y) => `${significant(y)} %` : undefined, height: 340, range: qualityRange,
    logY: !isPercent(state.metric) && isLower(state.metric), keep: (run) => !left || !run.is_simulated,
    line: state.x === 'bytes' && compared.length ? currentBudget(compared) : null,
    none: 'No run of this task has measured it yet.',
  });
  show($('axis'), Object.entries(AXES).map(([name, each]) => el('button', {
    type: 'button', role: 'radio', 'aria-checked': String(name === state.x), 'data-key': name, tabindex: name === state.x ? 0 : -1,
    click: () => { state.x = name; writeAddress(); drawQuality(); },
    keydown: (event) => {
      const names = Object.keys(AXES), move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      state.x = names[(names.indexOf(name) + move + names.length) % names.length];
      writeAddress();
      drawQuality();
      $('axis').querySelector('[aria-checked="true"]').focus();
    },
  }, each.name)));
}

function drawCompression() {
  const epochs = AXES.epoch, has = (column) => ofTask().some((run) => run.columns[column]);
  runChart('density-chart', { label: 'density', axis: epochs, column: 'ratio', logY: true, format: percent });
  runChart('bytes-chart', { label: 'bytes per step', axis: epochs, column: 'step/bytes', logY: true, format: bytes, none: 'These runs do not say how many steps an epoch has.' });
  runChart('residual-chart', { label: 'residual norm', axis: epochs, column: 'norm/residual', format: (y) => significant(y),
    none: has('norm/residual') ? undefined : 'No run here keeps a residual, or an earlier version made it, which did not measure it.' });
  runChart('loss-chart', { label: 'training loss', axis: epochs, column: 'loss/train', logY: true, format: (y) => significant(y) });
}
