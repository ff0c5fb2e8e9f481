// A link to what has moved leads on to the page where it is now. Without JavaScript that page's link is shown.
const leadOn = () => {
  const link = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector(".moved > li > a");
  if (link) location.replace(link.href);
};
document.addEventListener("DOMContentLoaded", leadOn);
addEventListener("hashchange", leadOn);
