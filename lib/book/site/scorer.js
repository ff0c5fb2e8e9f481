// Part of the search page: the index names sections as page#anchor; a heading that has the words as they were typed comes first.
var Scorer = {
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
  score: (result) => {
    const [page, anchor] = result[0].split("#");
    result[0] = page;
    if (anchor) result[2] = "#" + anchor;
    const typed = (new URLSearchParams(location.search).get("q") || "").trim().toLowerCase();
    const heading = result[1].toLowerCase(), at = heading.indexOf(typed);
    const whole = at >= 0 && !/^\.?\w/.test(heading.slice(at + typed.length)); // "theorem 5" is not in "theorem 5.1"
    return result[4] + (whole ? 30 - Math.min(at, 15) : 0);
  },
};
