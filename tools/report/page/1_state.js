// The data, what is shown of it, and the address's fragment, in which a view is kept.

let data = JSON.parse(document.getElementById('data').textContent);
const root = document.documentElement;
const $ = (id) => document.getElementById(id);
const SLOTS = 7; // colours of runs beside that of the reference, which is slot 0
const DASHES = [[], [], [7, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4], [12, 5]];

const state = {
  task: '', metric: '', reference: '', x: 'epoch', budget: null, filter: '', only: '',
  sort: 'best', down: true, picked: null, a: '', b: '', equal: false, zoom: false, theme: '', phase: '',
};
const slots = new Map(); // run → number of its colour
let isOwnChoice = false; // whether a person has chosen the runs in colour, or the page

function readAddress() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of kept) {
    if (name === 'picked') { state.picked = new Set(value.split('\n').filter(Boolean)); isOwnChoice = true; }
    else if (['down', 'equal', 'zoom'].includes(name)) state[name] = value === 'true';
    else if (name === 'budget') state.budget = Number(value) || null;
    else if (name in state) state[name] = value;
  }
}

function writeAddress() {
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name === 'picked' ? isOwnChoice : value !== '' && value !== null && value !== false) {
      kept.set(name, name === 'picked' ? [...value].join('\n') : value);
    }
  }
  try { history.replaceState(null, '', `#${kept}`); } catch { /* a page without an address */ }
}

// ------------------------------------------------------------ which runs

// run2 before run10
const inOrder = (a, b) => a.localeCompare(b, undefined, { numeric: true });
const tasks = () => [...new Set(data.runs.map((run) => run.task))]
  .sort((a, b) => count(b) - count(a) || inOrder(a, b));
const count = (task) => data.runs.filter((run) => run.task === task).length;
const ofTask = () => data.runs.filter((run) => run.task === state.task);
const find = (folder) => data.runs.find((run) => run.folder === folder);
const reference = () => find(state.reference) || null;
const isReference = (run) => run.folder === state.reference;
const pickedRuns = () => ofTask().filter((run) => state.picked.has(run.folder)).sort((a, b) => isReference(b) - isReference(a));

function metrics() {
  const names = new Set(ofTask().flatMap((run) => Object.keys(run.columns)));
  return [...names].filter((name) => /^(acc|loss|meter)\//.test(name) || ofTask().some((run) => run.summary.metric === name));
}

// Whether lower values are better: as a run's meter says, or else by the name.
function isLower(metric) {
  const run = ofTask().find((each) => each.summary.metric === metric && each.summary.better);
  return run ? run.summary.better === 'lower' : /loss|error|perplexity|bits/.test(metric);
}
const better = (a, b) => (isLower(state.metric) ? a < b : a > b);

// The best value of the quality so far, within a limit on a column; null where there is none.
function bestWithin(run, column, limit) {
  const values = run.columns[state.metric] || [], limits = run.columns[column] || [];
  let best = null;
  values.forEach((value, i) => {
    if (value !== null && limits[i] !== null && limits[i] <= limit && (best === null || better(value, best))) best = value;
  });
  return best;
}
const bestOf = (run) => bestWithin(run, 'epoch', Infinity);
const lastOf = (run, column = state.metric) => (run.columns[column] || []).findLast((value) => value !== null) ?? null;

function byQuality(runs, value = bestOf) {
  return runs.map((run) => [run, value(run)]).filter(([, v]) => v !== null)
    .sort(([, a], [, b]) => (better(a, b) ? -1 : better(b, a) ? 1 : 0));
}

// The settings of a run but for its seed, as text.
function signature(run) {
  return Object.entries(run.settings).filter(([name]) => name !== 'configs.seed').join('\n') || run.name;
}

// The runs: the reference, then those in progress, then the best of each kind of settings.
function varied(runs) {
  const ranked = [reference(), ...runs.filter((run) => run.state === 'running'), ...byQuality(runs).map(([run]) => run), ...runs];
  const seen = new Set(), first = [], rest = [];
  for (const run of new Set(ranked.filter(Boolean))) {
    (seen.has(signature(run)) && run.state !== 'running' ? rest : first).push(run);
    seen.add(signature(run));
  }
  return [...first, ...rest];
}

// ------------------------------------------------------------ choices that were not made yet

function settle() {
  if (!tasks().includes(state.task)) state.task = tasks()[0] || '';
  const runs = ofTask(), names = metrics();
  if (!names.includes(state.metric)) {
    state.metric = runs.map((run) => run.summary.metric).find(Boolean) || names[0] || '';
  }
  if (!runs.some((run) => run.folder === state.reference)) {
    const dense = runs.filter((run) => run.is_dense);
    const ranked = byQuality(dense.filter((run) => run.state === 'finished'));
    state.reference = (ranked[0]?.[0] || dense[0])?.folder || '';
  }
  if (!isOwnChoice || !runs.some((run) => state.picked.has(run.folder))) {
    isOwnChoice = false;
    state.picked = new Set(varied(runs).slice(0, 6).map((run) => run.folder));
  }
  const ranked = byQuality(runs).map(([run]) => run);
  if (!runs.some((run) => run.folder === state.a)) state.a = state.reference || ranked[0]?.folder || runs[0]?.folder || '';
  if (!runs.some((run) => run.folder === state.b)) {
    const others = [...ranked, ...runs].filter((run) => run.folder !== state.a);
    state.b = (others.find((run) => signature(run) !== signature(find(state.a))) || others[0])?.folder || '';
  }
  colour();
}

function colour() {
  for (const folder of slots.keys()) if (!state.picked.has(folder)) slots.delete(folder);
  for (const folder of state.picked) {
    if (folder === state.reference) slots.set(folder, 0);
    else if (!slots.get(folder)) {
      const used = new Set(slots.values());
      let slot = 1;
      while (used.has(slot) && slot < SLOTS) slot += 1;
      slots.set(folder, slot);
    }
  }
}

// The value of a colour of the style, looked up once for each drawing of the page.
const looked = new Map();
function css(name) {
  if (!looked.has(name)) looked.set(name, getComputedStyle(root).getPropertyValue(name).trim());
  return looked.get(name);
}
const colourOf = (run) => css(slots.has(run.folder) ? `--c${slots.get(run.folder)}` : '--pale');
const dashOf = (run) => DASHES[slots.get(run.folder) ?? 0];
