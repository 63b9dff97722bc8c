"use strict";
// A click on a heading sorts by its column, a second one reverses the order; empty entries stay last.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const header = button.closest("th");
    const body = header.closest("table").tBodies[0];
    const first = header.classList.contains("number") ? "descending" : "ascending";
    const second = first === "descending" ? "ascending" : "descending";
    const order = header.getAttribute("aria-sort") === first ? second : first;
    for (const other of header.parentElement.children) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => [row, row.cells[header.cellIndex].dataset.value]);
    rows.sort(([, one], [, other]) => {
      if (one === "" || other === "") return (one === "") - (other === "");
      const difference = Number(one) - Number(other);
      return sign * (Number.isNaN(difference) ? one.localeCompare(other) : difference);
    });
    body.append(...rows.map(([row]) => row));
  });
}
