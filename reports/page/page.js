// report.html: puts an interactive chart (dygraphs) in the place of each static one. Without it the page says the same.
'use strict';
(function () {
  const dashes = [null, [9, 4], [3, 3], [12, 3, 3, 3], [6, 2], [2, 2, 8, 2], [2, 4]];  // as in page.css
  const belowKnee = 0.7;  // as in axis.h
  const whole = [-0.01, 1.01];  // of places on an axis that is not linear
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = v => v === null || Number.isNaN(v) ? '–' : String(Number(v.toPrecision(5)));
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    element.className = className;
    if (text) element.textContent = text;
    return element;
  };
  const charts = [];  // all have steps on their axis
  let span = 1;    // of the running mean, in steps

  // From a value to its place on an axis that is not linear, 0 to 1: text::Axis::part.
  function placing(axis) {
    if (!axis) return v => v;
    const share = (log, v, from, to) => log ? Math.log(v / from) / Math.log(to / from) : (v - from) / (to - from);
    if (!axis.knee) return v => share(axis.log, v, axis.low, axis.high);
    return v => v <= axis.knee ? belowKnee * share(axis.log, v, axis.low, axis.knee)
                               : belowKnee + (1 - belowKnee) * share(true, v, axis.knee, axis.high);
  }

  // The mean of a value and of those in the steps before it. Where there is no value there is no mean.
  function smoothed(x, values) {
    if (span === 1) return values;
    let first = 0;
    return values.map((value, i) => {
      while (x[first] <= x[i] - span) ++first;
      const known = values.slice(first, i + 1).filter(v => v !== null);
      return value === null ? null : known.reduce((sum, v) => sum + v, 0) / known.length;
    });
  }

  class Chart {
    constructor(figure) {
      this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
      this.place = placing(this.data.axis);
      this.bandShown = true;
      this.build(figure);
      this.smooth();
      this.graph = new Dygraph(this.canvas, this.rows(), this.options());
      this.buttons(figure);
      this.reset.addEventListener('click', () => this.graph.resetZoom());
      figure.classList.add('drawn');
    }

    build(figure) {
      const live = make('div', 'live');
      this.canvas = live.appendChild(make('div', 'canvas'));
      this.canvas.setAttribute('role', 'img');
      this.canvas.setAttribute('aria-label', figure.querySelector('figcaption').textContent);
      this.hair = live.appendChild(make('div', 'hair'));
      this.hair.hidden = true;
      this.readout = make('p', 'readout');
      this.reset = make('button', 'reset', 'Whole range');
      this.reset.type = 'button';
      this.reset.hidden = true;
      figure.insertBefore(live, figure.querySelector('.plot'));
      live.after(this.readout, this.reset);
      this.hint();
    }

    // Each entry of the key shows and hides what it stands for.
    buttons(figure) {
      for (const entry of figure.querySelectorAll('.key [data-shows]')) {
        const button = make('button', 'toggle');
        const name = entry.querySelector('b').textContent;
        button.type = 'button';
        button.title = 'Show or hide ' + name;
        button.setAttribute('aria-pressed', 'true');
        button.append(...entry.childNodes);
        entry.append(button);
        button.addEventListener('click', () => {
          const shown = button.getAttribute('aria-pressed') !== 'true';
          button.setAttribute('aria-pressed', String(shown));
          charts.forEach(chart => chart.hint());
          if (entry.dataset.shows === 'band') {
            this.bandShown = shown;
            this.graph.updateOptions({});
          } else {
            this.graph.setVisibility(Number(entry.dataset.shows), shown);
          }
        });
      }
    }

    smooth() {
      const {x, lines, low, high} = this.data;
      this.shown = lines.map(line => smoothed(x, line.y));
      this.low = smoothed(x, low);
      this.high = smoothed(x, high);
    }
    at(v) { return v === null ? null : this.place(v); }
    rows() { return this.data.x.map((x, i) => [x].concat(this.shown.map(values => this.at(values[i])))); }

    colors() { return this.data.lines.map(line => color('--l' + line.style)); }
    options() {
      const {lines, axis} = this.data;
      const series = {};
      lines.forEach((line, i) => { series[String(i)] = { strokePattern: dashes[line.style] }; });
      const ticks = axis && axis.ticks.map(tick => ({v: this.place(tick.at), label: tick.label}));
      return {
        labels: ['step'].concat(lines.map((_, i) => String(i))),  // names never reach the library
        colors: this.colors(), series, strokeWidth: 1.8, legend: 'never',
        xlabel: this.data.xlabel, ylabel: this.data.ylabel, gridLineColor: color('--edge'), gridLineWidth: 0.6,
        axisLineColor: color('--soft'), highlightCircleSize: 4, xRangePad: 4, yRangePad: 10,
        axes: {
          x: { drawGrid: false, pixelsPerLabel: 60 },
          y: axis ? { axisLabelWidth: 64, valueRange: whole, ticker: () => ticks }
                  : { axisLabelWidth: 64, axisLabelFormatter: number },
        },
        underlayCallback: (context, area, graph) => this.underlay(context, area, graph),
        zoomCallback: () => follow(this),
        highlightCallback: (event, x) => charts.forEach(chart => chart.read(x)),
        unhighlightCallback: () => charts.forEach(chart => chart.hint()),
      };
    }

    underlay(context, area, graph) {
      const {x, axis, marks} = this.data;
      context.save();
      if (this.bandShown && this.low.length) {
        context.fillStyle = color('--band');
        context.globalAlpha = 0.3;
        context.beginPath();
        const at = (i, side) => [graph.toDomXCoord(x[i]), graph.toDomYCoord(this.at(side[i]))];
        const shown = x.map((_, i) => i).filter(i => this.low[i] !== null && this.high[i] !== null);
        shown.forEach(i => context.lineTo(...at(i, this.high)));
        shown.reverse().forEach(i => context.lineTo(...at(i, this.low)));
        context.fill();
        context.globalAlpha = 1;
      }
      context.setLineDash([2, 3]);
      if (axis && axis.knee) {
        const y = graph.toDomYCoord(belowKnee);
        context.strokeStyle = color('--soft');
        context.beginPath();
        context.moveTo(area.x, y);
        context.lineTo(area.x + area.w, y);
        context.stroke();
      }
      context.strokeStyle = context.fillStyle = color('--warn');
      context.font = '12px system-ui, "DejaVu Sans", sans-serif';
      marks.forEach((mark, i) => {
        const at = graph.toDomXCoord(mark.x);
        if (at < area.x || at > area.x + area.w) return;
        context.beginPath();
        context.moveTo(at, area.y);
        context.lineTo(at, area.y + area.h);
        context.stroke();
        const left = at > area.x + area.w / 2;
        context.textAlign = left ? 'right' : 'left';
        context.fillText(mark.label, at + (left ? -5 : 5), area.y + 12 + 15 * i, left ? at - area.x - 8 : area.x + area.w - at - 8);
      });
      context.restore();
    }

    // An axis of ours has its range set at all times.
    zoomed() {
      const [low, high] = this.graph.yAxisRange();
      return this.graph.isZoomed('x') || (this.data.axis ? high - low < 1.01 : this.graph.isZoomed('y'));
    }

    // The values at a step, in words under the chart.
    read(x) {
      const xs = this.data.x;
      let row = xs.findIndex(v => v >= x);
      if (row < 0) row = xs.length - 1;
      const visible = this.graph.visibility();
      this.hair.hidden = false;
      this.hair.style.left = this.graph.toDomXCoord(xs[row]) + 'px';
      this.readout.textContent = '';
      const add = text => { this.readout.appendChild(make('span', '', text)); };
      add(this.data.xlabel + ' ' + Math.floor(xs[row]) + (span > 1 ? ', mean of ' + span : ''));
      this.data.lines.forEach((line, k) => { if (visible[k]) add(line.name + ': ' + number(this.shown[k][row])); });
    }
    hint() {
      this.hair.hidden = true;
      this.readout.textContent = 'Point at a step to read its values; drag to zoom, double-click for the whole range; press a name below to hide its curve.';
    }
  }

  // What one chart is zoomed to, the others are.
  function follow(leader) {
    if (leader.data.axis && !leader.graph.isZoomed()) leader.graph.updateOptions({ axes: { y: { valueRange: whole } } });
    const range = leader.graph.isZoomed('x') ? leader.graph.xAxisRange() : null;
    for (const chart of charts) {
      if (chart !== leader) chart.graph.updateOptions({ dateWindow: range });
      chart.reset.hidden = !chart.zoomed();
    }
  }

  // Off at first: a mean hides the very steps that are looked for.
  function smoothing() {
    const last = Math.max(...charts.map(chart => chart.data.x.length ? chart.data.x[chart.data.x.length - 1] : 0));
    const label = make('label', 'smoothing', 'Smoothing ');
    const select = label.appendChild(make('select', ''));
    for (const steps of [1, 3, 10, 30, 100, 300, 1000].filter(steps => steps === 1 || 2 * steps <= last + 1)) {
      const option = select.appendChild(make('option', '', steps === 1 ? 'off' : 'running mean of ' + steps + ' steps'));
      option.value = String(steps);
    }
    if (select.length < 2) return;
    select.addEventListener('change', () => {
      span = Number(select.value);
      for (const chart of charts) {
        chart.smooth();
        chart.graph.updateOptions({ file: chart.rows() });
        chart.hint();
      }
    });
    charts[0].canvas.parentElement.before(label);
  }

  for (const figure of document.querySelectorAll('figure.chart')) charts.push(new Chart(figure));
  if (charts.length) smoothing();
  dark.addEventListener('change', () => charts.forEach(chart => chart.graph.updateOptions({
    colors: chart.colors(), gridLineColor: color('--edge'), axisLineColor: color('--soft') })));

  // A link to a page of the documentation opens it.
  function unfold() {
    const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (target && target.tagName === 'DETAILS') {
      target.open = true;
      target.scrollIntoView();
    }
  }
  window.addEventListener('hashchange', unfold);
  for (const link of document.querySelectorAll('a[href^="#doc-"]')) link.addEventListener('click', () => setTimeout(unfold));
  unfold();
})();
