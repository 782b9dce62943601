// Controls, drawing everything, and fetching new data where a server offers it.

const THEMES = { '': 'Theme: as the system', light: 'Theme: light', dark: 'Theme: dark' };
const EVERY = 5000; // ms between two looks at a run that goes on

function theme() {
  if (state.theme) root.dataset.theme = state.theme; else delete root.dataset.theme;
  $('theme').textContent = THEMES[state.theme];
  looked.clear();
}

function drawBar() {
  const runs = ofTask();
  options($('task'), tasks().map((task) => [task, `${task} (${count(task)})`]), state.task);
  options($('metric'), metrics().map((name) => [name, metricName(name)]), state.metric);
  options($('reference'), [['', 'none'], ...runs.map((run) => [run.folder, run.label])], state.reference);
  const going = data.runs.filter((run) => run.state === 'running').length;
  $('subtitle').textContent = data.runs.length
    ? `${data.runs.length} run${data.runs.length === 1 ? '' : 's'}${going ? `, ${going} in progress` : ''} · read ${new Date(data.made * 1000).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })}`
    : 'No run was found.';
  show($('chips'), pickedRuns().map((run) => el('button', { type: 'button', class: 'chip', 'data-key': `chip-${run.folder}`, title: `${run.name}: click to draw it in grey`,
    click: () => pick(run.folder, false) }, swatch(run), el('span', {}, run.label),
  run.state === 'finished' ? null : el('span', { class: `badge ${run.state}` }, run.state === 'running' ? `${run.summary.epochs}/${run.summary.planned ?? '?'}` : 'stopped'))));
}

function render() {
  settle();
  theme();
  drawBar();
  answerBest();
  answerCost();
  answerWait();
  answerDiffer();
  drawQuality();
  drawPhases();
  drawCompression();
  drawRanks();
  drawServers();
  drawTable();
  drawCompare();
  drawPredicted();
  drawNotes();
  writeAddress();
}

function bind() {
  const choose = (id, name, then = render) => $(id).addEventListener('change', () => { state[name] = $(id).value; then(); });
  $('task').addEventListener('change', () => {
    Object.assign(state, { task: $('task').value, metric: '', reference: '', a: '', b: '', budget: null, phase: '' });
    isOwnChoice = false;
    slots.clear();
    render();
  });
  choose('metric', 'metric');
  choose('reference', 'reference', () => { slots.clear(); if (state.reference) state.picked.add(state.reference); render(); });
  choose('run-a', 'a', () => { drawCompare(); answerDiffer(); writeAddress(); });
  choose('run-b', 'b', () => { drawCompare(); answerDiffer(); writeAddress(); });
  choose('phase-run', 'phase', () => { drawPhases(); writeAddress(); });
  choose('only', 'only', () => { drawTable(); writeAddress(); });
  $('swap').addEventListener('click', () => { [state.a, state.b] = [state.b, state.a]; drawCompare(); answerDiffer(); writeAddress(); });
  $('equal').addEventListener('change', () => { state.equal = $('equal').checked; drawCompare(); writeAddress(); });
  $('zoom').addEventListener('change', () => { state.zoom = $('zoom').checked; drawQuality(); writeAddress(); });
  $('filter').addEventListener('input', () => { state.filter = $('filter').value; drawTable(); writeAddress(); });
  $('budget').addEventListener('input', () => {
    const [low, high] = budgetRange(ofTask().filter(comparable));
    state.budget = low * (high / low) ** ($('budget').value / 1000);
    answerBest();
    if (state.x === 'bytes') drawQuality();
    writeAddress();
  });
  $('theme').addEventListener('click', () => {
    const names = Object.keys(THEMES);
    state.theme = names[(names.indexOf(state.theme) + 1) % names.length];
    render();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', render);
}

async function refresh() {
  if (document.hidden) return;
  const live = $('live');
  try {
    const answer = await fetch('data.json', { headers: { 'If-None-Match': data.tag || '' } });
    if (answer.status === 200) {
      data = await answer.json();
      data.tag = answer.headers.get('ETag');
      render();
    } else if (answer.status !== 304) throw new Error(answer.status);
    live.dataset.on = 'yes';
    live.textContent = `live, looked at ${new Date().toLocaleTimeString('en-GB')}`;
  } catch {
    live.dataset.on = 'lost';
    live.textContent = 'the server does not answer; the page shows what it had';
  }
}

readAddress();
if (!(state.theme in THEMES)) state.theme = '';
bind();
$('filter').value = state.filter;
$('only').value = state.only;
$('zoom').checked = state.zoom;
render();
if (data.live) {
  $('live').dataset.on = 'yes';
  $('live').textContent = 'live';
  setInterval(refresh, EVERY);
}
