// Shows or hides all code of a page, as the reader last chose. Without JavaScript there are no buttons, and folds are folds.
document.addEventListener("DOMContentLoaded", () => {
  const { dataset } = document.documentElement;
  const buttons = document.querySelectorAll(".code-switch button");
  const stored = (act) => {
    try {
      return act(localStorage);
    } catch {
      return null; // the browser keeps nothing: the choice is for this page
    }
  };
  function show(choice) {
    dataset.code = choice;
    for (const button of buttons) button.setAttribute("aria-pressed", button.value === choice);
    for (const fold of document.querySelectorAll(".cell > details.above-input")) fold.open = choice === "shown";
  }
  for (const button of buttons) {
    button.parentElement.hidden = false;
    button.addEventListener("click", () => {
      show(dataset.code === button.value ? "" : button.value); // pressed again, the page is as it was written
      stored((kept) => kept.setItem("book-code", dataset.code));
    });
  }
  show(stored((kept) => kept.getItem("book-code")) ?? "");
});
