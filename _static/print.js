// Paper is white: a page is printed in its light theme, whatever the screen shows.
{
  const { dataset } = document.documentElement;
  let shown;
  addEventListener("beforeprint", () => {
    shown = dataset.theme;
    dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    dataset.theme = shown;
  });
}
