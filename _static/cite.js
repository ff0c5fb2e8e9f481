// The button that copies the book's BibTeX entry. Without JavaScript it stays hidden, and the entry is in the fold below.
document.addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector("button.cite");
  const fold = document.querySelector("details.cite-entry");
  if (!button || !fold) return;
  const entry = fold.querySelector("pre");
  const said = document.querySelector(".cite-said");

  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(entry.textContent);
      said.textContent = "Copied.";
    } catch {
      // a browser that keeps its clipboard: the entry is shown and selected
      fold.open = true;
      getSelection().selectAllChildren(entry);
      said.textContent = "Not copied: the entry is selected below.";
    }
  });
  button.hidden = false;
});
