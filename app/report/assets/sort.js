// Tables of class "sortable": a press on a column's heading sorts the rows by its cells' data-value, or by their text.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  headings.forEach((heading, column) => {
    if (heading.dataset.sort === "no") return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const falling = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        const given = cell.dataset.value ?? cell.textContent.trim();
        return given === "" || Number.isNaN(Number(given)) ? given : Number(given);
      };
      const order = (one, other) => {
        const [a, b] = [value(one), value(other)];
        if (typeof a === "number" && typeof b === "number") return a - b;
        return String(a).localeCompare(String(b));
      };
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((one, other) => (falling ? order(other, one) : order(one, other)));
      body.append(...rows);
      table.classList.toggle("sorted", true);
    });
  });
}
