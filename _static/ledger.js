// The filters of the claims ledger. Without JavaScript the form stays hidden and every row is shown.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table#ledger");
  const form = document.querySelector(".ledger-filters");
  if (!table || !form) return;

  const rows = [...table.querySelectorAll("tbody tr")];
  const shown = document.querySelector("#ledger-shown");
  const filters = ["paper", "verdict", "kind"].map((key) => [key, document.querySelector(`#ledger-${key}`)]);

  function apply() {
    let count = 0;
    for (const row of rows) {
      row.hidden = filters.some(([key, select]) => select.value && row.dataset[key] !== select.value);
      if (!row.hidden) count += 1;
    }
    shown.textContent = `${count} of ${rows.length} claims`;
  }

  // ledger.html?paper=low-rank-bias opens with the filter set.
  const wanted = new URLSearchParams(location.search);
  for (const [key, select] of filters) {
    const value = wanted.get(key);
    if (value && [...select.options].some((option) => option.value === value)) select.value = value;
    select.addEventListener("change", apply);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
});
