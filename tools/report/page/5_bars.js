// Phases of a step, ranks, and parameter servers.

const LOOP = ['compute', 'wait'], ENGINE = ['compress', 'communicate'];
const PHASES = {
  compute: 'compute: data, forward and backward pass, optimizer', wait: 'wait for gradients',
  compress: 'compress (engine’s thread)', communicate: 'communicate (engine’s thread)',
};
const ms = (value) => (value === null ? '–' : `${significant(1000 * value)} ms`);

function drawPhases() {
  show($('phase-key'), Object.entries(PHASES).map(([kind, text]) => el('span', {}, el('i', { class: `swatch ${kind}`, 'aria-hidden': 'true' }), text)));
  const timed = pickedRuns().filter((run) => meanOf(run, 'step/compute') !== null);
  const runs = timed.filter((run) => !run.is_simulated), left = timed.length - runs.length;
  const ranked = runs.map((run) => ({ run, parts: Object.fromEntries([...LOOP, ...ENGINE].map((kind) => [kind, meanOf(run, `step/${kind}`) || 0])) }));
  const longest = Math.max(...ranked.map(({ parts }) => Math.max(parts.compute + parts.wait, parts.compress + parts.communicate)), 1e-9);
  const bar = (parts, kinds, thin) => el('div', { class: `stack${thin ? ' thin' : ''}`, role: 'img', 'aria-label': kinds.map((kind) => `${kind} ${ms(parts[kind])}`).join(', ') },
    kinds.map((kind) => el('i', { class: kind, title: `${kind} ${ms(parts[kind])}`, style: { width: `${(100 * parts[kind]) / longest}%` } })));
  const note = left ? el('p', { class: 'lead' }, `${left} simulated run${left > 1 ? 's' : ''} left out: one process runs all workers in turn.`) : null;
  show($('phase-bars'), note, runs.length ? el('div', { class: 'panel phases' }, ranked.map(({ run, parts }) => el('div', { class: 'phase' },
    el('span', { class: 'name', title: run.name }, run.label),
    bar(parts, LOOP, false), el('span', { class: 'num' }, ms(parts.compute + parts.wait)), bar(parts, ENGINE, true))))
    : el('div', { class: 'chart' }, el('p', { class: 'none' }, 'None of the runs in colour has measured phases of real workers: those of a parameter server do not report them.')));
  drawPhaseEpochs(runs);
}

function drawPhaseEpochs(runs) {
  const chosen = runs.find((run) => run.folder === state.phase) || runs.find((run) => !run.is_dense) || runs[0];
  options($('phase-run'), runs.map((run) => [run.folder, run.label]), chosen?.folder || '');
  const box = $('phase-chart');
  box.hidden = !chosen;
  $('phase-run').closest('.head').hidden = !chosen;
  if (!chosen) return;
  const [xs, compute] = points(chosen, AXES.epoch, 'step/compute');
  const wait = points(chosen, AXES.epoch, 'step/wait')[1];
  const curve = (kind, ys, shown) => ({ name: kind, kind, points: [xs, ys], shown, colour: css(`--${kind}`), fill: css(`--${kind}`), dash: [], dots: xs.length < 3 });
  drawChart('phase-chart', {
    label: `time of a step of ${chosen.label}, stacked`, axis: AXES.epoch, format: ms, each: false, height: 200,
    range: (u, low, high) => [0, high * 1.05 || 1],
    curves: [curve('wait', compute.map((value, i) => value + (wait[i] ?? 0)), wait), curve('compute', compute, compute)],
  });
}

// ------------------------------------------------------------ each worker

function columns(values, label, format, colourName) {
  const most = Math.max(...values, 0) || 1;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const range = low === high ? format(low) : `${format(low)} to ${format(high)}`;
  return el('div', {}, el('div', { class: 'columns', role: 'img', 'aria-label': `${label} by rank: ${range}` },
    values.slice(0, 256).map((value, rank) => el('i', { title: `rank ${rank}: ${format(value)}`, style: { height: `${(100 * value) / most}%`, background: colourName } }))),
  el('p', {}, el('strong', {}, label), el('br'), range));
}

function drawRanks() {
  const runs = pickedRuns().filter((run) => (run.ranks['bytes/sent'] || []).length > 1);
  $('traffic').hidden = !runs.length;
  show($('traffic-body'), el('div', { class: 'ranks' }, runs.map((run) => el('article', { class: 'panel' },
    el('h3', {}, swatch(run), named(run)),
    el('div', { class: 'rank-set' },
      columns(run.ranks['bytes/sent'], 'sent', bytes, css('--communicate')),
      run.ranks['bytes/received'] ? columns(run.ranks['bytes/received'], 'received', bytes, css('--compute')) : null,
      run.ranks['seconds/wait'] ? columns(run.ranks['seconds/wait'], 'waiting', seconds, css('--wait')) : null)))));
}

// ------------------------------------------------------------ parameter servers

function drawServers() {
  const all = ofTask().filter((run) => run.updates);
  const picked = all.filter((run) => state.picked.has(run.folder));
  const runs = (picked.length ? picked : all).slice(0, 4);
  $('server').hidden = !runs.length;
  show($('server-body'), runs.map((run) => {
    const { staleness, workers } = run.updates;
    const updates = staleness.reduce((sum, n) => sum + n, 0);
    const mean = staleness.reduce((sum, n, i) => sum + n * i, 0) / updates;
    const most = Math.max(...staleness), top = Math.max(...workers.map((worker) => worker.updates));
    const bar = (size, title, kind) => el('span', { title }, el('i', { style: { height: `${Math.max(size, 0.8)}%`, background: css(kind) } }));
    const bars = (items, label) => el('div', { class: `columns tall${items.length > 24 ? ' many' : ''}`, role: 'img', 'aria-label': label }, items);
    const captions = (texts) => (texts.length > 24 ? el('div', { class: 'foot' }, el('span', {}, texts[0]), el('span', {}, texts[texts.length - 1]))
      : el('div', { class: 'captions', 'aria-hidden': 'true' }, texts.map((text) => el('span', {}, text))));
    return el('article', { class: 'panel' }, el('h3', {}, swatch(run), named(run)),
      el('p', { class: 'lead' }, `${updates.toLocaleString('en')} updates of ${workers.length} worker${workers.length === 1 ? '' : 's'} in ${seconds(run.updates.seconds)}; mean staleness ${significant(mean)}, at most ${staleness.length - 1}.`),
      el('div', { class: 'pair' },
        el('div', {}, el('h4', {}, 'Staleness: updates of others since a worker’s model'),
          bars(staleness.slice(0, 128).map((n, i) => bar((100 * n) / most, `staleness ${i}: ${n} updates`, '--communicate')),
            `updates by staleness: ${staleness.slice(0, 20).map((n, i) => `${i}: ${n}`).join(', ')}`),
          captions(staleness.slice(0, 128).map((n, i) => i))),
        el('div', {}, el('h4', {}, 'Worker: its updates'),
          bars(workers.slice(0, 256).map((worker) => bar((100 * worker.updates) / top, `worker ${worker.worker}: ${worker.updates} updates, mean staleness ${significant(worker.staleness)}, ${bytes(worker.received)} received from it, ${bytes(worker.sent)} sent to it`, '--compute')),
          workers.slice(0, 20).map((worker) => `worker ${worker.worker}: ${worker.updates} updates`).join(', ')),
          captions(workers.map((worker) => (workers.length > 8 ? worker.worker : `${worker.worker}: ${worker.updates.toLocaleString('en')}`))))));
  }));
}
