"use strict";
(() => {
  const controls = document.getElementById("controls");
  if (!controls) return;
  const all = (where) => document.querySelectorAll(where);

  /* Shows the series that are ticked, in figures and tables, and of each list the view that is chosen. */
  function update() {
    for (const box of controls.querySelectorAll("input")) {
      const hide = (part) => part.classList.toggle("off", !box.checked);
      const isOf = (name) => (row) => row.cells[0].textContent === name;
      const { run, name } = box.dataset;
      all(`[data-series="${box.value}"]`).forEach(hide);
      [...all("[data-base] tbody tr, [data-quantity] tbody tr")].filter(isOf(box.parentElement.textContent.trim())).forEach(hide);
      [...all(`[data-run="${CSS.escape(run)}"] tbody tr`)].filter(isOf(name)).forEach(hide);
    }
    for (const { id, value } of controls.querySelectorAll("select")) {
      for (const view of all(`[data-${id}]`)) view.hidden = view.dataset[id] !== value;
    }
  }

  controls.addEventListener("change", update);
  controls.addEventListener("submit", (event) => event.preventDefault());
  update(); // a browser may keep what was chosen before a reload
})();
