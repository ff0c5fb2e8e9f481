// The box that says what the symbols of a formula mean, there and in the other papers (lib/book/site/symbols.py): for the
// pointer, a tap and the keyboard; Escape closes it. Without JavaScript there is none, and the introduction has the table.
document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector("article.bd-article");
  const data = document.querySelector("script#symbols");
  if (!article || !data) return;
  const means = JSON.parse(data.textContent);
  const box = document.createElement("div");
  Object.assign(box, { id: "symbols-box", className: "symbols-box", hidden: true });
  box.setAttribute("role", "tooltip");
  article.append(box);
  let shown = null; // the formula that has the box
  let timer = 0;

  function close() {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    box.hidden = true;
  }

  async function open(formula) {
    clearTimeout(timer);
    if (shown === formula) return;
    close();
    shown = formula;
    const names = formula.closest("[data-symbols]").dataset.symbols.split(" ");
    MathJax.typesetClear([box]);
    box.style.maxHeight = "";
    box.innerHTML = `<dl>${names.map((name) => `<div class="math">${means[name]}</div>`).join("")}</dl>`;
    await MathJax.typesetPromise([box]);
    if (shown !== formula) return;
    for (const part of box.querySelectorAll("[tabindex]")) part.removeAttribute("tabindex");
    formula.setAttribute("aria-describedby", box.id);
    box.hidden = false;
    const [at, frame] = [formula.getBoundingClientRect(), article.getBoundingClientRect()];
    const below = innerHeight - at.bottom > Math.min(box.scrollHeight + 8, at.top);
    box.style.maxHeight = `${Math.max(below ? innerHeight - at.bottom : at.top, 160) - 12}px`;
    const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 16);
    box.style.left = `${Math.max(left, 8) - frame.left}px`;
    box.style.top = `${(below ? at.bottom + 4 : at.top - box.offsetHeight - 4) - frame.top}px`;
  }

  const formulaOf = (event) => event.target.closest?.("[data-symbols] mjx-container");
  article.addEventListener("focusin", (event) => formulaOf(event) && open(formulaOf(event)));
  article.addEventListener("focusout", close);
  article.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return; // a tap focuses
    const formula = formulaOf(event);
    clearTimeout(timer);
    if (formula) timer = setTimeout(open, 250, formula);
    else if (!box.contains(event.target) && shown !== document.activeElement) timer = setTimeout(close, 250);
  });
  article.addEventListener("pointerleave", () => shown !== document.activeElement && close());
  addEventListener("keydown", (event) => event.key === "Escape" && close());
});
