// The filters of the claims ledger. Without JavaScript the form stays hidden, every row is shown, and the counts are plain.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table#ledger");
  const form = document.querySelector(".ledger-filters");
  if (!table || !form) return;

  const rows = [...table.querySelectorAll("tbody tr")];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const shown = document.querySelector("#ledger-shown");
  const fields = Object.fromEntries(
    ["paper", "kind", "verdict", "text"].map((key) => [key, document.querySelector(`#ledger-${key}`)]),
  );

  const matches = (row, key) =>
    key === "text"
      ? fields.text.value.toLowerCase().split(/\s+/).every((word) => texts.get(row).includes(word))
      : !fields[key].value || [row.dataset[key], row.dataset[key].split(":")[0]].includes(fields[key].value);

  // The address carries the filters, so that ledger.html?paper=low-rank-bias&kind=theorem&verdict=reproduced can be linked.
  function address(changes = {}) {
    const query = new URLSearchParams();
    for (const key of Object.keys(fields)) {
      const value = (changes[key] ?? fields[key].value).trim();
      if (value) query.set(key, value);
    }
    return location.pathname + (query.toString() ? `?${query}` : "");
  }

  function apply() {
    for (const row of rows) row.hidden = !Object.keys(fields).every((key) => matches(row, key));
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
    // each count says how many rows a click on it would show; a click on the chosen one takes the filter off
    for (const link of document.querySelectorAll(".ledger-tally a")) {
      const verdict = link.dataset.verdict;
      const chosen = fields.verdict.value === verdict;
      link.querySelector("strong").textContent = rows.filter(
        (row) => row.dataset.verdict === verdict && ["paper", "kind", "text"].every((key) => matches(row, key)),
      ).length;
      link.href = address({ verdict: chosen ? "" : verdict });
      if (chosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  function read() {
    const wanted = new URLSearchParams(location.search);
    for (const [key, field] of Object.entries(fields)) {
      field.value = wanted.get(key) ?? "";
      if (field.selectedIndex === -1) field.value = ""; // a value that is not in the list
    }
    apply();
  }

  function change() {
    apply();
    history.replaceState(null, "", address());
  }

  form.addEventListener("input", change);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelector(".ledger-tally").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState(null, "", link.href);
    read();
  });
  addEventListener("popstate", read);
  form.hidden = false;
  read();
  // rows that are hidden now have moved the one that the address names
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
});
