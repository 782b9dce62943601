// The four answers above the charts.

const comparable = (run) => run.columns['total/bytes']?.some((sent) => sent > 0);

function budgetRange(runs) {
  const totals = runs.map((run) => lastOf(run, 'total/bytes'));
  const firsts = runs.map((run) => run.columns['total/bytes'].find((sent) => sent > 0));
  return [Math.min(...firsts), Math.max(...totals)];
}

// All finished runs have reached this budget.
function defaultBudget(runs) {
  const finished = runs.filter((run) => run.state === 'finished');
  return Math.min(...(finished.length ? finished : runs).map((run) => lastOf(run, 'total/bytes')));
}

function currentBudget(runs) {
  const [low, high] = budgetRange(runs);
  return Math.min(Math.max(state.budget ?? defaultBudget(runs), low), high);
}

function meter(rows, low, high) {
  const span = high - low || 1;
  return el('ul', { class: 'list' }, rows.map(({ run, value, text, mark }) => el('li', {}, named(run),
    el('span', { class: 'num' }, text),
    el('div', { class: 'track', 'aria-hidden': 'true' }, value === null ? null
      : el('i', { style: { width: `${Math.max(1, (100 * (value - low)) / span)}%`, left: '0', background: slots.has(run.folder) ? colourOf(run) : css('--muted') } }),
    mark === undefined ? null : el('b', { style: { left: `${(100 * (mark - low)) / span}%` } })))));
}

function answerBest() {
  const runs = ofTask().filter(comparable), box = $('budget');
  box.disabled = !runs.length;
  box.parentElement.hidden = !runs.length;
  if (!runs.length) {
    show($('best-answer'), el('p', { class: 'big' }, 'Not known'), el('p', {}, 'No run here has sent bytes between workers.'));
    show($('best-list'));
    return;
  }
  const budget = currentBudget(runs), [low, high] = budgetRange(runs);
  box.value = high > low ? Math.round((1000 * Math.log(budget / low)) / Math.log(high / low)) : 0;
  $('budget-text').textContent = bytes(budget);
  box.setAttribute('aria-valuetext', bytes(budget));
  const within = (run) => bestWithin(run, 'total/bytes', budget * (1 + 1e-9));
  const ranked = byQuality(runs, within);
  const none = runs.filter((run) => within(run) === null);
  if (!ranked.length) {
    show($('best-answer'), el('p', { class: 'big' }, 'None yet'), el('p', {}, 'No run was measured within so few bytes.'));
    show($('best-list'));
    return;
  }
  const [first, value] = ranked[0];
  const ties = ranked.filter(([, v]) => v === value).length - 1;
  show($('best-answer'), el('p', { class: 'big' }, quality(value), ' ', el('small', {}, metricName(state.metric))),
    el('p', {}, el('strong', {}, first.label), ties ? `, and ${ties} more as good,` : '', ` at ${bytes(budget)} sent per worker.`));
  const rows = ranked.slice(0, 5).map(([run, v]) => ({ run, value: v, text: quality(v) }));
  const values = ranked.map(([, v]) => v);
  const bottom = isPercent(state.metric) ? 0 : Math.min(0, ...values);
  show($('best-list'), meter(rows, bottom, isPercent(state.metric) ? 100 : Math.max(...values)),
    none.length ? el('p', { class: 'lead' }, `${none.length === 1 ? none[0].label : `${none.length} runs`} had not finished one epoch by then.`) : null);
}

// Two standard errors of the difference of two accuracies in %, if samples are drawn independently.
function samplingError(a, b, samples) {
  if (!samples || !isPercent(state.metric)) return null;
  const variance = [a, b].reduce((sum, p) => sum + (p * (100 - p)) / samples, 0);
  return 2 * Math.sqrt(variance);
}

function testSamples(run) {
  const splits = run.facts.samples || {};
  const split = Object.keys(splits).find((name) => state.metric.includes(name));
  return split ? splits[split] : null;
}

function costs() {
  const dense = reference();
  if (!dense) return [];
  return ofTask().filter((run) => run !== dense && !run.is_dense).map((run) => {
    const epochs = Math.min(lastOf(run, 'epoch') ?? -1, lastOf(dense, 'epoch') ?? -1);
    const [own, base] = [bestWithin(run, 'epoch', epochs), bestWithin(dense, 'epoch', epochs)];
    if (own === null || base === null) return null;
    const delta = own - base, error = samplingError(own, base, testSamples(dense));
    const loses = isLower(state.metric) ? delta > 0 : delta < 0;
    return { run, delta, error, epochs: epochs + 1, isCost: loses && (error === null || Math.abs(delta) > error) };
  }).filter(Boolean);
}

function answerCost() {
  const dense = reference(), found = costs();
  if (!dense || !found.length) {
    const why = dense ? 'No compressed run of this task has an epoch yet.' : 'There is no dense run of this task to compare with: train one with configs/dense/sgd.py, or choose a reference above.';
    show($('cost-answer'), el('p', { class: 'big' }, 'Not known'), el('p', {}, why));
    show($('cost-list'));
    return;
  }
  const complete = found.filter(({ run }) => run.state === 'finished');
  const judged = complete.length ? complete : found;
  const costly = judged.filter((each) => each.isCost);
  const error = judged.find((each) => each.error !== null)?.error ?? null;
  const head = !costly.length ? 'No' : costly.length === judged.length ? 'Yes' : `In ${costly.length} of ${judged.length} runs`;
  const sign = isLower(state.metric) ? -1 : 1;
  const ranked = [...judged].sort((p, q) => sign * (q.delta - p.delta));
  const most = Math.max(...judged.map(({ delta }) => Math.abs(delta)), error || 0) || 1;
  const which = complete.length ? 'finished compressed run' : 'compressed run so far';
  const all = `${judged.length} ${which}${judged.length === 1 ? '' : 's'}`.replace('run so fars', 'runs so far');
  const verdict = costly.length ? `${all} against ${dense.label}.` : `${all}: none is below ${dense.label}${error === null ? '' : ' by more than the sampling error'}.`;
  show($('cost-answer'), el('p', { class: `big ${costly.length ? 'bad' : 'good'}` }, head), el('p', {}, verdict),
    error === null ? null : el('p', { class: 'muted' }, `Best epoch, at equal epochs. Differences below about ${error.toFixed(1)} points may be chance: ${testSamples(dense).toLocaleString('en')} test samples, one seed.`));
  const shown = ranked.length <= 5 ? ranked : [...ranked.slice(0, 2), ...ranked.slice(-3)];
  show($('cost-list'), el('ul', { class: 'list' }, shown.map(({ run, delta, isCost, epochs }) => el('li', {}, named(run),
    el('span', { class: `num ${isCost ? 'bad' : ''}` }, difference(delta), run.state === 'finished' ? '' : ` (${epochs} epochs)`),
    el('div', { class: 'track', 'aria-hidden': 'true' },
      el('i', { style: { left: `${50 + Math.min(0, (50 * delta) / most)}%`, width: `${Math.max(1, (50 * Math.abs(delta)) / most)}%`, background: isCost ? css('--bad') : css('--muted') } }),
      el('b', { style: { left: '50%' } }))))),
  ranked.length > 5 ? el('p', { class: 'lead' }, `The two best and the three worst of ${ranked.length}.`) : null);
}

function answerWait() {
  const real = ofTask().filter((run) => run.summary.wait !== null && run.summary.workers > 1);
  const left = ofTask().filter((run) => run.is_simulated).length;
  const note = left ? el('p', { class: 'lead' }, `${left} simulated run${left > 1 ? 's' : ''} left out: one process runs all workers in turn.`) : null;
  if (!real.length) {
    show($('wait-answer'), el('p', { class: 'big' }, 'Not known'), el('p', {}, 'No run here has measured how long several workers wait.'), note);
    show($('wait-list'));
    return;
  }
  const sent = real.includes(reference()) ? reference() : null;
  const leader = byQuality(real.filter((run) => run !== sent && !run.is_dense))[0]?.[0] || sent || real[0];
  const main = [sent, leader].filter((run, i, all) => run && all.indexOf(run) === i);
  const lines = main.map((run) => {
    const communicate = meanOf(run, 'step/communicate'), compress = meanOf(run, 'step/compress');
    const share = communicate + compress > 0 ? communicate / (communicate + compress) : null;
    return el('p', {}, el('strong', {}, run.label), ` waits ${percent(run.summary.wait)} of its training time`,
      share === null ? '.' : `; ${percent(share)} of the engine’s work is communication, the rest compression.`);
  });
  show($('wait-answer'), el('p', { class: 'big' }, main.map((run) => percent(run.summary.wait)).join(' → '), ' ', el('small', {}, 'of the time waiting')), lines, note);
  const shown = [...new Set([...main, ...byQuality(real).map(([run]) => run)])].slice(0, 5);
  show($('wait-list'), meter(shown.map((run) => ({ run, value: run.summary.wait, text: percent(run.summary.wait) })), 0, 1));
}

function meanOf(run, column) {
  const values = (run.columns[column] || []).filter((value) => value !== null);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function answerDiffer() {
  const [a, b] = [find(state.a), find(state.b)];
  if (!a || !b) {
    show($('differ-answer'), el('p', { class: 'big' }, 'One run'), el('p', {}, 'A second run is needed for a comparison.'));
    return;
  }
  const found = settingDifferences(a, b);
  show($('differ-answer'), el('p', { class: 'big' }, found.length, ' ', el('small', {}, found.length === 1 ? 'setting' : 'settings')),
    el('p', {}, el('strong', {}, a.label), ' and ', el('strong', {}, b.label)),
    el('ul', { class: 'list pairs' }, found.slice(0, 4).map(([name, x, y]) => el('li', {}, el('span', { class: 'name', title: name }, shortName(name)),
      el('span', {}, `${shortValue(x)} → ${shortValue(y)}`)))),
    el('p', {}, el('a', { href: '#compare', click: jump('compare') }, found.length > 4 ? `All ${found.length}, side by side` : 'Side by side, or choose two others')));
}

// A jump that leaves the fragment of the address to the state.
const jump = (id) => (event) => { event.preventDefault(); $(id).scrollIntoView(); $(id).querySelector('select')?.focus({ preventScroll: true }); };

const shortName = (name) => name.replace(/^configs\.(train\.)?/, '');
function shortValue(value) {
  if (value === undefined) return 'none';
  const text = /^[\w.]+\.[A-Za-z_]\w*$/.test(value) ? value.split('.').pop() : value;
  return text.length > 34 ? `${text.slice(0, 33)}…` : text;
}
