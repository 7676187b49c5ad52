/* profile.html: search over all ops, columns that sort. Without it the page says the same. */
'use strict';
(function () {
  const value = (row, column) => {
    const cell = row.cells[column], marked = cell.querySelector('[data-v]');
    return marked ? Number(marked.dataset.v) : cell.textContent.trim().toLowerCase();
  };

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener('click', () => {
        const down = head.getAttribute('aria-sort') !== 'descending';
        heads.forEach(other => other.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        const rows = [...table.tBodies[0].rows].map(row => [value(row, column), row]);
        rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
        rows.forEach(([, row]) => table.tBodies[0].appendChild(row));
      });
    });
  }

  const ops = document.getElementById('ops');
  if (!ops) return;
  ops.querySelectorAll('table').forEach(sortable);
  const tools = document.createElement('p'), label = document.createElement('label'), input = document.createElement('input');
  const count = document.createElement('span');
  tools.className = 'tools';
  label.textContent = 'Search ';
  label.htmlFor = input.id = 'search';
  input.type = 'search';
  input.placeholder = 'name, kind, layer, limit';
  count.id = 'found';
  count.setAttribute('role', 'status');
  tools.append(label, input, count);
  ops.querySelector('h2').after(tools);

  const categories = [...ops.querySelectorAll('.category')];
  const open = new Map(categories.map(c => [c, c.open]));
  input.addEventListener('input', () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0, all = 0;
    for (const category of categories) {
      let here = 0;
      for (const row of category.querySelectorAll('tbody tr')) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
        here += !row.hidden;
        ++all;
      }
      found += here;
      category.hidden = here === 0;
      category.open = words.length ? here > 0 : open.get(category);
    }
    count.textContent = words.length ? found + ' of ' + all : '';
  });
})();
