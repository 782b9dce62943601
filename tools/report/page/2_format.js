// Numbers as people read them, and elements of the page. Text never becomes HTML.

function significant(value, digits = 3) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1).replace('e+', 'e');
  const after = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString('en', { maximumFractionDigits: Math.min(after, 6) });
}

function bytes(value) {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${significant(value)} ${units[unit]}`;
}

function seconds(value) {
  if (value === null || value === undefined) return '–';
  if (value < 60) return `${significant(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

const percent = (value) => (value === null || value === undefined ? '–' : `${significant(100 * value)} %`);
const isPercent = (metric) => metric.startsWith('acc/');
const times = (value) => (value === null || value === undefined ? '–' : `${significant(value)}×`);

function quality(value, metric = state.metric) {
  if (value === null || value === undefined) return '–';
  return isPercent(metric) ? `${value.toFixed(2)} %` : significant(value, 4);
}

function difference(value, metric = state.metric) {
  const sign = value > 0 ? '+' : value < 0 ? '−' : '±';
  const size = Math.abs(value);
  return isPercent(metric) ? `${sign}${size.toFixed(2)} points` : `${sign}${significant(size)}`;
}

function metricName(metric) {
  const [kind, rest] = [metric.split('/')[0], metric.split('/').slice(1).join('/')];
  const top = /^(\w+)_top(\d+)$/.exec(rest);
  if (kind === 'acc' && top) return `${top[1]} accuracy (top ${top[2]})`;
  if (kind === 'loss') return `${rest} loss`;
  return metric || 'none';
}

function ago(time, now = Date.now() / 1000) {
  const past = Math.max(0, now - time);
  if (past < 90) return `${Math.round(past)} s ago`;
  if (past < 5400) return `${Math.round(past / 60)} min ago`;
  if (past < 172800) return `${Math.round(past / 3600)} h ago`;
  return new Date(time * 1000).toISOString().slice(0, 10);
}

// An element: el('p', {class: 'lead'}, 'text', child). A function among the attributes is a listener.
function el(tag, attributes = {}, ...children) {
  const svg = ['svg', 'line'].includes(tag);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(name, value);
    else if (name === 'style') for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// Replace what an element shows, and give the focus back to the control of the same data-key.
function show(target, ...children) {
  const key = target.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  target.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  if (key) target.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

function options(select, entries, chosen) {
  const wanted = entries.map(([value, text]) => `${value}\n${text}`).join('\0');
  if (select.dataset.entries !== wanted) {
    select.replaceChildren(...entries.map(([value, text]) => el('option', { value }, text)));
    select.dataset.entries = wanted;
  }
  select.value = chosen;
}

function swatch(run) {
  const dash = dashOf(run).join(' ');
  const line = el('line', { x1: 1, x2: 25, y1: 5, y2: 5, stroke: colourOf(run), 'stroke-width': 3, 'stroke-dasharray': dash || null });
  return el('svg', { width: 26, height: 10, 'aria-hidden': 'true' }, line);
}

const named = (run) => el('span', { class: 'name', title: run.name }, run.label);
