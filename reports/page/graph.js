// graph.html: phases as tabs, zoom, search, the inside of a layer, a card for each op. Without it the page shows the layers alone.
'use strict';
(function () {
  const data = JSON.parse(document.getElementById('data').textContent);
  const picture = document.querySelector('.picture');
  const side = document.querySelector('aside');
  const SVG = 'http://www.w3.org/2000/svg';
  const [NAME, KIND, SHAPE, LAYOUT, COMPATIBLE, WHY, OPERANDS, FUSION] = [0, 1, 2, 3, 4, 5, 6, 7];
  const place = new Map();  // op -> [phase, group]
  data.phases.forEach((phase, p) => phase.groups.forEach((group, g) => group.ops.forEach(op => place.set(op, [p, g]))));

  const make = (tag, words, parent, attributes = {}) => {
    const element = document.createElement(tag);
    if (words) element.textContent = words;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.appendChild(element);
    return element;
  };
  const draw = (tag, attributes, parent) => {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.appendChild(element);
    return element;
  };
  const button = (words, parent, act, attributes = {}) => {
    const b = make('button', words, parent, { type: 'button', ...attributes });
    b.addEventListener('click', act);
    return b;
  };
  const short = (text, most) => text.length > most ? text.slice(0, most - 1) + '…' : text;

  // What an <svg> shows of itself.
  class View {
    constructor(svg) {
      this.svg = svg;
      const [, , w, h] = svg.getAttribute('viewBox').split(' ').map(Number);
      this.whole = { x: 0, y: 0, w: Math.max(w, 1), h: Math.max(h, 1) };
      svg.removeAttribute('width');
      svg.removeAttribute('height');
      svg.setAttribute('preserveAspectRatio', 'xMidYMid meet');
      this.start();
      svg.addEventListener('wheel', event => {
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, this.at(event));
      }, { passive: false });
      let from = null;
      svg.addEventListener('pointerdown', event => { from = { at: this.at(event), id: event.pointerId, moved: false }; });
      svg.addEventListener('pointermove', event => {
        if (!from || from.id !== event.pointerId) return;
        const to = this.at(event);
        if (!from.moved && Math.hypot(to.x - from.at.x, to.y - from.at.y) * this.scale() < 4) return;
        if (!from.moved) svg.setPointerCapture(event.pointerId);
        from.moved = true;
        this.box.x += from.at.x - to.x;
        this.box.y += from.at.y - to.y;
        this.show();
      });
      const end = event => { if (from) this.dragged = from.moved; from = null; void event; };
      svg.addEventListener('pointerup', end);
      svg.addEventListener('pointercancel', end);
    }
    size() { const r = this.svg.getBoundingClientRect(); return { w: Math.max(r.width, 1), h: Math.max(r.height, 1) }; }
    scale() { const s = this.size(); return Math.min(s.w / this.box.w, s.h / this.box.h); }
    at(event) {
      const m = this.svg.getScreenCTM();
      return m ? new DOMPoint(event.clientX, event.clientY).matrixTransform(m.inverse()) : { x: 0, y: 0 };
    }
    show() { this.svg.setAttribute('viewBox', [this.box.x, this.box.y, this.box.w, this.box.h].map(v => v.toFixed(1)).join(' ')); }
    fit() { this.box = { ...this.whole }; this.show(); }
    // Readable from the top where the whole is not.
    start() {
      const s = this.size(), w = Math.min(s.w / 0.75, Math.max(this.whole.w, s.w)), h = w * s.h / s.w;
      this.box = { x: (this.whole.w - w) / 2, y: Math.min(0, (this.whole.h - h) / 2), w, h };
      if (this.whole.w > w) this.center(this.svg.querySelector('.node'));
      this.show();
    }
    center(node) {
      const b = node && node.getBBox();
      if (!b) return;
      this.box.x = b.x + b.width / 2 - this.box.w / 2;
      this.box.y = Math.min(0, this.box.y);
    }
    zoom(by, about) {
      const min = 60, next = Math.max(min, Math.min(this.box.w / by, 4 * Math.max(this.whole.w, this.whole.h)));
      const f = next / this.box.w, c = about || { x: this.box.x + this.box.w / 2, y: this.box.y + this.box.h / 2 };
      this.box = { x: c.x - (c.x - this.box.x) * f, y: c.y - (c.y - this.box.y) * f, w: next, h: this.box.h * f };
      this.show();
    }
    pan(dx, dy) { this.box.x += dx * this.box.w; this.box.y += dy * this.box.h; this.show(); }
    look(node) {
      const b = node.getBBox(), s = this.size();
      const w = Math.min(this.whole.w * 2, s.w), h = w * s.h / s.w;
      this.box = { x: b.x + b.width / 2 - w / 2, y: b.y + b.height / 2 - h / 2, w, h };
      this.show();
    }
  }

  const sections = [...document.querySelectorAll('section.phase')];
  const tools = make('div', '', null, { class: 'tools', role: 'toolbar', 'aria-label': 'Picture' });
  const tabs = data.phases.map((phase, p) => button(phase.name, tools, () => open(p), { 'aria-selected': 'false', role: 'tab' }));
  button('+', tools, () => view().zoom(1.4), { 'aria-label': 'zoom in', class: 'in' });
  button('−', tools, () => view().zoom(1 / 1.4), { 'aria-label': 'zoom out', class: 'out' });
  button('Fit', tools, () => view().fit(), { class: 'fit' });
  const search = make('input', '', tools, { type: 'search', placeholder: 'Search ops and layers', 'aria-label': 'Search ops and layers' });
  const found = make('p', '', null, { class: 'more', role: 'status' });
  const hits = make('ul', '', null, { class: 'hits' });
  const crumb = make('p', '', null, { class: 'crumb' });
  const inner = make('div', '', null, { class: 'inside' });
  const card = make('section', '', null, { class: 'card', 'aria-live': 'polite' });
  picture.prepend(tools, found, hits);
  picture.querySelector('.legend').after(crumb, inner);
  side.prepend(card);
  inner.hidden = crumb.hidden = true;
  document.body.classList.add('live');

  const views = new Map();
  let phase = 0, group = -1, innerView = null;
  function view() {
    if (group >= 0 && innerView) return innerView;
    const svg = sections[phase] && sections[phase].querySelector('svg');
    if (!svg) return { zoom() {}, fit() {}, pan() {}, look() {} };
    if (!views.has(svg)) views.set(svg, new View(svg));
    return views.get(svg);
  }

  const compatible = op => data.ops[op][COMPATIBLE] === 1;
  const line = (list, term, words) => { if (words) { make('dt', term, list); make('dd', words, list); } };

  function tell(op) {
    card.replaceChildren();
    const o = data.ops[op];
    make('h2', o[NAME], card);
    const list = make('dl', '', card);
    line(list, 'Op', o[KIND]);
    line(list, 'On a TPU', o[COMPATIBLE] ? 'compatible (green)' : 'not compatible (red): ' + o[WHY]);
    line(list, 'Shape', o[SHAPE]);
    line(list, 'Layout', o[LAYOUT]);
    if (o[FUSION] >= 0) line(list, 'Fusion', data.fusions[o[FUSION]].join(': '));
    if (o[OPERANDS].length) {
      make('dt', 'Reads', list);
      const dd = make('dd', '', list);
      o[OPERANDS].forEach(i => button(short(data.ops[i][NAME], 60), dd, () => choose(i)));
    }
  }
  function tellGroup(p, g) {
    const { name, ops } = data.phases[p].groups[g];
    card.replaceChildren();
    make('h2', name, card);
    const wrong = ops.filter(op => !compatible(op)).length;
    make('p', ops.length + ' ops, ' + (wrong ? wrong + ' not compatible' : 'all compatible'), card);
  }

  function nodeOf(svg, op, box) {
    const o = data.ops[op], [x, y, w, h] = box;
    const g = draw('g', { class: 'node ' + (compatible(op) ? 'good' : 'bad'), 'data-op': op, tabindex: 0, role: 'button',
      'aria-label': o[NAME] + ', ' + o[SHAPE] + (compatible(op) ? ', compatible' : ', not compatible') }, svg);
    draw('rect', { x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 4 }, g);
    const local = o[NAME].split('/').pop();
    draw('text', { x, y: y - 4, class: 'name' }, g).textContent = short(local, 19);
    draw('text', { x, y: y + 10 }, g).textContent = short((compatible(op) ? '' : '✗ ') + o[SHAPE], 26);
    const act = () => { if (innerView.dragged) { innerView.dragged = false; return; } choose(op); };
    g.addEventListener('click', act);
    g.addEventListener('keydown', event => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); choose(op); } });
  }

  function enter(p, g) {
    open(p);
    group = g;
    const { name, ops, inside } = data.phases[p].groups[g];
    inner.replaceChildren();
    crumb.replaceChildren();
    button('← ' + data.phases[p].name, crumb, () => open(p), { class: 'back' });
    make('span', ' › ' + name, crumb);
    sections[p].hidden = true;
    inner.hidden = crumb.hidden = false;
    if (inside.w > 0) {
      const svg = draw('svg', { class: 'graph', role: 'group', 'aria-label': 'inside of ' + name, viewBox: '0 0 ' + inside.w + ' ' + inside.h }, inner);
      const tip = draw('marker', { id: 'tip', viewBox: '0 0 10 8', refX: 0, refY: 4, markerWidth: 10, markerHeight: 8,
        markerUnits: 'userSpaceOnUse', orient: 'auto' }, svg);
      draw('path', { class: 'tip', d: 'M0 0L10 4L0 8z' }, tip);
      inside.frames.forEach(([fusion, x, y, w, h]) => {
        const frame = draw('rect', { class: 'fusion', 'data-fusion': fusion, x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 8 }, svg);
        draw('title', {}, frame).textContent = 'fusion ' + data.fusions[fusion].join(': ');
      });
      inside.lines.forEach(d => draw('path', { class: 'edge', 'marker-end': 'url(#tip)', d }, svg));
      ops.forEach((op, i) => nodeOf(svg, op, inside.boxes[i]));
      innerView = new View(svg);
    } else {
      innerView = null;
      make('p', 'Too many ops to be drawn:', inner);
      const list = make('ul', '', inner, { class: 'hits' });
      ops.slice(0, 2000).forEach(op => button(data.ops[op][NAME], make('li', '', list), () => choose(op)));
    }
    tellGroup(p, g);
  }

  function open(p) {
    phase = p;
    group = -1;
    innerView = null;
    inner.hidden = crumb.hidden = true;
    sections.forEach((section, i) => { section.hidden = i !== p; });
    tabs.forEach((tab, i) => tab.setAttribute('aria-selected', String(i === p)));
    view();
  }

  function choose(op) {
    const [p, g] = place.get(op);
    if (p !== phase || g !== group) enter(p, g);
    tell(op);
    inner.querySelectorAll('.chosen').forEach(e => e.classList.remove('chosen'));
    const node = inner.querySelector('[data-op="' + op + '"]');
    if (node && innerView) { node.classList.add('chosen'); innerView.look(node); }
  }

  for (const node of document.querySelectorAll('.phase .node')) {
    const [p, g] = node.dataset.g.split('.').map(Number);
    node.addEventListener('click', () => {
      const v = view();
      if (v.dragged) { v.dragged = false; return; }
      enter(p, g);
    });
    node.addEventListener('keydown', event => {
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); enter(p, g); inner.querySelector('.node')?.focus(); }
    });
  }
  for (const item of document.querySelectorAll('.wrong li')) {
    const words = item.textContent;
    item.replaceChildren();
    button(words, item, () => choose(Number(item.dataset.op)));
  }

  search.addEventListener('input', () => {
    const wanted = search.value.trim().toLowerCase();
    hits.replaceChildren();
    document.querySelectorAll('.hit').forEach(e => e.classList.remove('hit'));
    found.textContent = '';
    if (!wanted) return;
    const most = 60;
    let count = 0;
    data.ops.forEach((o, op) => {
      if (!o[NAME].toLowerCase().includes(wanted) && !o[KIND].toLowerCase().includes(wanted)) return;
      const at = place.get(op);
      if (!at) return;
      document.querySelector('[data-g="' + at.join('.') + '"]')?.classList.add('hit');
      if (++count <= most) button(o[NAME] + '  ' + o[SHAPE], make('li', '', hits), () => choose(op));
    });
    found.textContent = count + (count === 1 ? ' op' : ' ops') + (count > most ? ', the first ' + most + ' listed' : '');
  });

  document.addEventListener('keydown', event => {
    if (event.target === search) { if (event.key === 'Escape') { search.value = ''; search.dispatchEvent(new Event('input')); } return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { '+': () => view().zoom(1.4), '-': () => view().zoom(1 / 1.4), '0': () => view().fit(), '/': () => search.focus(),
      Escape: () => { if (group >= 0) open(phase); } };
    const inPicture = event.target.closest && event.target.closest('svg.graph');
    if (inPicture) Object.assign(keys, { ArrowLeft: () => view().pan(-0.15, 0), ArrowRight: () => view().pan(0.15, 0),
      ArrowUp: () => view().pan(0, -0.15), ArrowDown: () => view().pan(0, 0.15) });
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  make('p', 'Choose a layer to see inside it, an op for its shape and layout. Wheel, + and − zoom, dragging moves, 0 fits the whole, / searches, Escape goes back.', card);
  if (data.phases.length) open(0);
  // Paper gets the layers of every phase as they were.
  window.addEventListener('beforeprint', () => { if (group >= 0) open(phase); view().fit(); });
})();
