// report.html: puts an interactive chart (dygraphs) in the place of each static one. Without it the page says the same.
'use strict';
(function () {
  const dashes = [null, [9, 4], [3, 3], [12, 3, 3, 3], [6, 2], [2, 2, 8, 2]];  // as in page.css
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = v => v === null || Number.isNaN(v) ? '–' : String(Number(v.toPrecision(5)));

  // Whole powers of ten from the least to the largest value of a logarithmic chart.
  function decades(data) {
    const all = [].concat(...data.lines.map(line => line.y)).filter(v => v !== null);
    const low = Math.floor(Math.log10(Math.min(...all))), high = Math.ceil(Math.log10(Math.max(...all)));
    return [low, Math.max(high, low + 1)];
  }
  function logAxis(data) {
    const [low, high] = decades(data);
    const step = Math.max(1, Math.ceil((high - low) / 7));
    const ticks = [];
    for (let e = low; e <= high; e += step) ticks.push({v: 10 ** e, label: '1e' + e});
    return {axisLabelWidth: 64, valueRange: [10 ** low * 0.99, 10 ** high * 1.01], ticker: () => ticks};
  }

  function underlay(data) {
    return (context, area, graph) => {
      context.save();
      if (data.low.length) {
        context.fillStyle = color('--band');
        context.globalAlpha = 0.3;
        context.beginPath();
        const at = (i, side) => [graph.toDomXCoord(data.x[i]), graph.toDomYCoord(side[i])];
        const shown = data.x.map((_, i) => i).filter(i => data.low[i] !== null && data.high[i] !== null);
        shown.forEach(i => context.lineTo(...at(i, data.high)));
        shown.reverse().forEach(i => context.lineTo(...at(i, data.low)));
        context.fill();
        context.globalAlpha = 1;
      }
      context.strokeStyle = context.fillStyle = color('--warn');
      context.font = '12px system-ui, "DejaVu Sans", sans-serif';
      context.setLineDash([2, 3]);
      data.marks.forEach((mark, i) => {
        const x = graph.toDomXCoord(mark.x);
        if (x < area.x || x > area.x + area.w) return;
        context.beginPath();
        context.moveTo(x, area.y);
        context.lineTo(x, area.y + area.h);
        context.stroke();
        const left = x > area.x + area.w / 2;
        context.textAlign = left ? 'right' : 'left';
        context.fillText(mark.label, x + (left ? -5 : 5), area.y + 12 + 15 * i, left ? x - area.x - 8 : area.x + area.w - x - 8);
      });
      context.restore();
    };
  }

  function draw(figure) {
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const live = document.createElement('div');
    const canvas = live.appendChild(document.createElement('div'));
    const hair = live.appendChild(document.createElement('div'));
    const readout = document.createElement('p');
    const reset = document.createElement('button');
    live.className = 'live';
    canvas.className = 'canvas';
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', figure.querySelector('figcaption').textContent);
    hair.className = 'hair';
    hair.hidden = true;
    readout.className = 'readout';
    reset.className = 'reset';
    reset.type = 'button';
    reset.textContent = 'Whole range';
    reset.hidden = true;
    const hint = 'Point at a step to read its values; drag to zoom, double-click for the whole range.';
    readout.textContent = hint;
    figure.insertBefore(live, figure.querySelector('.plot'));
    live.after(readout, reset);

    const colors = () => data.lines.map(line => color('--l' + line.style));
    const series = {};
    data.lines.forEach((line, i) => { series[String(i)] = { strokePattern: dashes[line.style] }; });
    const options = {
      labels: ['step'].concat(data.lines.map((_, i) => String(i))),  // names never reach the library
      colors: colors(), series, strokeWidth: 1.8, logscale: data.log, legend: 'never',
      xlabel: data.xlabel, ylabel: data.ylabel, gridLineColor: color('--edge'), gridLineWidth: 0.6,
      axisLineColor: color('--soft'), highlightCircleSize: 4, xRangePad: 4, yRangePad: 10,
      axes: {
        x: { drawGrid: false, pixelsPerLabel: 60 },
        y: data.log ? logAxis(data) : { axisLabelWidth: 64, axisLabelFormatter: number },
      },
      underlayCallback: underlay(data),
      zoomCallback: () => { reset.hidden = !graph.isZoomed(); },
      highlightCallback: (event, x, points) => {
        hair.hidden = false;
        hair.style.left = points[0].canvasx + 'px';
        readout.textContent = '';
        const add = text => { readout.appendChild(document.createElement('span')).textContent = text; };
        add(data.xlabel + ' ' + Math.floor(x));
        points.forEach(p => add(data.lines[Number(p.name)].name + ': ' + number(p.yval)));
      },
      unhighlightCallback: () => { hair.hidden = true; readout.textContent = hint; },
    };
    const graph = new Dygraph(canvas, data.x.map((x, i) => [x].concat(data.lines.map(line => line.y[i]))), options);
    reset.addEventListener('click', () => { graph.resetZoom(); reset.hidden = true; });
    dark.addEventListener('change', () => graph.updateOptions({
      colors: colors(), gridLineColor: color('--edge'), axisLineColor: color('--soft') }));
    figure.classList.add('drawn');
  }

  for (const figure of document.querySelectorAll('figure.chart')) draw(figure);
})();
