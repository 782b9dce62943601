// The table of runs, the comparison of two, and what was predicted.

const COLUMNS = [
  ['best', 'Best', (run) => bestOf(run), (value) => quality(value)],
  ['last', 'Last', (run) => lastOf(run), (value) => quality(value)],
  ['epochs', 'Epochs', (run) => run.summary.epochs, (value, run) => (run.summary.planned ? `${value} of ${run.summary.planned}` : String(value))],
  ['bytes', 'Sent', (run) => run.summary.bytes, bytes],
  ['fewer', 'Fewer bytes', (run) => run.summary.fewer, times],
  ['density', 'Density', (run) => run.summary.density, percent],
  ['ms', 'Step', (run) => run.summary.ms_per_step, (value) => (value === null ? '–' : `${significant(value)} ms`)],
  ['wait', 'Waiting', (run) => run.summary.wait, percent],
  ['seconds', 'Training', (run) => run.summary.seconds, seconds],
  ['staleness', 'Staleness', (run) => run.summary.staleness, (value) => significant(value)],
  ['workers', 'Workers', (run) => run.summary.workers, (value) => (value === null ? '–' : String(value))],
  ['written', 'Last written', (run) => run.written, (value) => ago(value)],
];

function matches(run) {
  if (state.only && run.state !== state.only) return false;
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const about = [run.name, run.environment.hosts, run.environment.engine].join('\n').toLowerCase();
  const settings = Object.entries(run.settings).map(([name, value]) => `${name}=${value}`).join('\n').toLowerCase();
  return words.every((word) => (word.includes('=') ? settings : about).includes(word));
}

function drawTable() {
  const columnsShown = COLUMNS.filter(([key, , value]) => key === 'best' || ofTask().some((run) => value(run) !== null && value(run) !== undefined));
  const key = columnsShown.find(([name]) => name === state.sort) || null;
  const runs = ofTask().filter(matches);
  const order = (a, b) => {
    if (!key) return inOrder(a.label, b.label) * (state.down ? -1 : 1);
    const [x, y] = [key[2](a), key[2](b)];
    if (x === null || x === undefined) return y === null || y === undefined ? 0 : 1;
    if (y === null || y === undefined) return -1;
    return (x - y) * (state.down ? -1 : 1);
  };
  runs.sort((a, b) => order(a, b) || inOrder(a.label, b.label));
  const total = ofTask().length;
  $('count').textContent = `${runs.length === total ? total : `${runs.length} of ${total}`} run${total === 1 ? '' : 's'}. Tick a run to draw it in colour, up to ${SLOTS + 1}.`;
  const sorter = (name, text) => el('th', { scope: 'col', 'aria-sort': state.sort === name ? (state.down ? 'descending' : 'ascending') : 'none', class: name === 'label' ? 'text' : null },
    el('button', { type: 'button', 'data-key': `sort-${name}`, click: () => { state.down = state.sort === name ? !state.down : name !== 'label'; state.sort = name; writeAddress(); drawTable(); } }, text));
  show($('table'), el('thead', {}, el('tr', {}, sorter('label', 'Run'), el('th', { scope: 'col', class: 'text' }, 'State'), columnsShown.map(([name, text]) => sorter(name, text)))),
    el('tbody', {}, runs.map((run) => el('tr', {},
      el('th', { scope: 'row', class: 'text', title: run.folder }, el('label', { class: 'who' },
        el('input', { type: 'checkbox', 'data-key': `pick-${run.folder}`, checked: state.picked.has(run.folder), change: (event) => pick(run.folder, event.target.checked) }),
        state.picked.has(run.folder) ? swatch(run) : null, el('span', {}, run.label))),
      el('td', { class: 'text' }, el('span', { class: `badge ${run.state}` }, run.state), run.is_simulated ? el('span', { class: 'badge', title: 'one process runs all workers in turn: its seconds mean little' }, 'simulated') : null),
      columnsShown.map(([, , value, format]) => el('td', {}, format(value(run) ?? null, run)))))));
}

function pick(folder, wanted) {
  isOwnChoice = true;
  if (wanted && state.picked.size > SLOTS) state.picked.delete([...state.picked].find((each) => each !== state.reference));
  if (wanted) state.picked.add(folder); else state.picked.delete(folder);
  render();
}

// ------------------------------------------------------------ two runs

function settingDifferences(a, b) {
  const names = [...new Set([...Object.keys(a.settings), ...Object.keys(b.settings)])];
  return names.map((name) => [name, a.settings[name], b.settings[name]]).filter(([, x, y]) => x !== y);
}

function drawCompare() {
  const [a, b] = [find(state.a), find(state.b)];
  const all = ofTask().map((run) => [run.folder, run.label]);
  options($('run-a'), all, state.a);
  options($('run-b'), all, state.b);
  $('equal').checked = state.equal;
  if (!a || !b) { show($('compare-body'), el('p', { class: 'none' }, 'A second run is needed.')); return; }
  const line = (name, x, y, title) => el('tr', {}, el('th', { scope: 'row', class: 'text', title }, name),
    el('td', { class: 'text wide' }, x ?? '–'), el('td', { class: `text wide${x !== y ? ' changed' : ''}` }, y ?? '–'));
  const group = (text) => el('tr', { class: 'group' }, el('th', { colspan: 3, scope: 'rowgroup' }, text));
  const measured = COLUMNS.filter(([name, , value]) => name !== 'written' && (value(a) ?? value(b) ?? null) !== null)
    .map(([, text, value, format]) => [text, format(value(a) ?? null, a), format(value(b) ?? null, b)]);
  const differ = settingDifferences(a, b);
  const settings = state.equal ? [...new Set([...Object.keys(a.settings), ...Object.keys(b.settings)])].map((name) => [name, a.settings[name], b.settings[name]]) : differ;
  const about = [...new Set([...Object.keys(a.environment), ...Object.keys(b.environment)])].map((name) => [name, a.environment[name], b.environment[name]]).filter(([, x, y]) => state.equal || x !== y);
  show($('compare-body'), el('table', {},
    el('thead', {}, el('tr', {}, el('th', { scope: 'col', class: 'text' }, 'Of'), el('th', { scope: 'col', class: 'text' }, `A: ${a.label}`), el('th', { scope: 'col', class: 'text' }, `B: ${b.label}`))),
    el('tbody', {}, group('Measured'), measured.map(([name, x, y]) => line(name, x, y)),
      group(`Settings that differ: ${differ.length}`), settings.map(([name, x, y]) => line(shortName(name), x ?? '(not there)', y ?? '(not there)', name)),
      about.length ? group('Environment') : null, about.map(([name, x, y]) => line(name, x, y)))));
}

// ------------------------------------------------------------ predicted

function drawPredicted() {
  const rows = [];
  const ratio = (measured, predicted) => (predicted ? times(measured / predicted) : '–');
  for (const run of [...pickedRuns(), ...ofTask().filter((each) => !state.picked.has(each.folder))].slice(0, 40)) {
    const { bytes_per_exchange: exchange, steps_per_exchange: every, seconds: planned } = run.predicted;
    const sent = lastOf(run, 'step/bytes');
    // Epochs need not have a whole number of exchanges: where steps are local, the mean counts.
    const measured = every > 1 ? meanOf(run, 'step/bytes') * every : sent;
    if (exchange && sent !== null) rows.push([run, 'bytes per exchange', bytes(exchange), bytes(measured), ratio(measured, exchange)]);
    const step = run.summary.ms_per_step;
    Object.entries(planned || {}).forEach(([planner, value], i) => {
      rows.push([run, `step, ${planner}${i ? ' (not used)' : ''}`, ms(value), i || step === null ? '' : `${significant(step)} ms`, i || step === null ? '' : ratio(step, 1000 * value)]);
    });
  }
  $('predicted').hidden = !rows.length;
  show($('predicted-table'), el('thead', {}, el('tr', {}, ['Run', 'Of', 'Predicted', 'Measured', 'Measured / predicted'].map((text, i) => el('th', { scope: 'col', class: i < 2 ? 'text' : null }, text)))),
    el('tbody', {}, rows.map(([run, ...cells]) => el('tr', {}, el('th', { scope: 'row', class: 'text', title: run.name }, run.label), cells.map((cell, i) => el('td', { class: i ? null : 'text' }, cell))))));
}

function drawNotes() {
  const items = [
    ...data.skipped.map(({ path, reason }) => el('li', {}, el('code', {}, path), ` ${reason}: left out.`)),
    ...data.runs.flatMap((run) => run.notes.map((note) => el('li', {}, el('strong', {}, run.name), `: ${note}`))),
    ...(ofTask().some((run) => run.is_simulated) ? [el('li', {}, 'Simulated runs: one process runs all workers in turn, so their seconds are not those of a cluster. Their bytes and their quality are.')] : []),
  ];
  $('notes').hidden = !items.length;
  show($('notes-list'), items);
}
